"""A job that computes for half a second, and notes from when to when."""

import json
import time
from pathlib import Path

began = time.time()
time.sleep(0.5)
Path("interval.json").write_text(json.dumps([began, time.time()]))
