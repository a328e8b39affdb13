"""A job that sleeps for half a second, and writes when it began and ended."""

import json
import time
from pathlib import Path

began = time.time()
time.sleep(0.5)
Path("interval.json").write_text(json.dumps([began, time.time()]))
