"""A job of two processes: the rank FAILING_RANK fails after a second, the other ends at once."""

import os
import time

if os.environ["RANK"] == os.environ["FAILING_RANK"]:
    time.sleep(1)
    raise RuntimeError("this rank failed")
