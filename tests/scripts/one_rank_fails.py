"""A job of two processes: one is done at once, the one that FAILING_RANK names fails later."""

import os
import time

if os.environ["RANK"] == os.environ["FAILING_RANK"]:
    time.sleep(1)
    raise RuntimeError("this rank failed")
