"""Launch the given script and wait for its run, as a notebook or terminal does."""

import sys

from course.config import rung
from course.jobs import launch

run = launch.launch(sys.argv[1], rung("baseline", quick=True))
run.wait()
print("waited")
