"""What a notebook or terminal does: launch the script given, and wait for its run."""

import sys

from course import jobs
from course.config import rung

run = jobs.launch(sys.argv[1], rung("baseline", quick=True))
jobs.wait(run)
print("waited")
