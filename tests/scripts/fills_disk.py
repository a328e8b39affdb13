"""A job that fills the disk with its run's folder, and then ends normally."""

import time
from pathlib import Path

while not Path("started.json").exists():  # a script without room for it is ended
    time.sleep(0.01)
try:
    with open("filler", "w") as file:
        while True:
            file.write("x" * 4096)
except OSError:
    pass  # the disk is full
