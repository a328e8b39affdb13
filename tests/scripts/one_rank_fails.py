"""A job of two processes: one rank fails after a second, the other ends at once."""

import os
import time

if os.environ["RANK"] == os.environ["COURSE_FAILING_RANK"]:
    time.sleep(1)
    raise RuntimeError("this rank failed")
