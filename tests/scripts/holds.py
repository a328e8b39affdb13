"""A job that waits until its folder contains the file `go`, then prints its own source."""

import sys
import time
from pathlib import Path

print("holding", file=sys.stderr)
deadline = time.monotonic() + 120
while not Path("go").exists() and time.monotonic() < deadline:
    time.sleep(0.05)
print(Path(__file__).read_text())
