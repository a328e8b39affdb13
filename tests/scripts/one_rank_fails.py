"""A job of two processes: rank 0 is done at once, rank 1 fails a second later."""

import os
import time

if os.environ["RANK"] == "1":
    time.sleep(1)
    raise RuntimeError("rank 1 failed")
