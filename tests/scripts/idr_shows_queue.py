"""Follow the queue, as a terminal does."""

import sys

from idr_pytools import display_slurm_queue

display_slurm_queue(*sys.argv[1:], timestep=1)
print("and the program goes on")
