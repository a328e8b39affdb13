"""Task 1 fails; the other tasks, and a process started by each, would run for minutes."""

import os
import subprocess
import sys
import time

if os.environ["SLURM_PROCID"] == "1":
    time.sleep(0.5)
    sys.exit("task 1 has a mistake")
subprocess.Popen(["sleep", "300"])
time.sleep(300)
