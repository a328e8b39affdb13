"""A job whose process is killed, as when the system runs out of memory."""

import os
import signal
import sys

print("the last words", file=sys.stderr, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
