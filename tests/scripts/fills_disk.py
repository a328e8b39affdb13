"""A job that fills the disk with its run's folder, and then ends normally."""

import json
import time
from pathlib import Path

started = Path("started.json")  # a script without room for it is ended; it is written twice
while not (started.exists() and json.loads(started.read_text())["processes"]):
    time.sleep(0.01)
try:
    with open("filler", "w") as file:
        while True:
            file.write("x" * 4096)
except OSError:
    pass  # the disk is full
