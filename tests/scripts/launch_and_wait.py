"""What a notebook or terminal does: launch the script given, and wait for its run."""

import sys

from course.config import rung
from course.jobs import launch

run = launch.launch(sys.argv[1], rung("baseline", quick=True))
launch.wait(run)
print("waited")
