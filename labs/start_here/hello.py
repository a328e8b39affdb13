"""Print which process of the job this is, and where it runs."""

import os
import platform

number, count = os.environ.get("SLURM_PROCID", "0"), os.environ.get("SLURM_NTASKS", "1")
print(f"process {number} of {count} on {platform.node()}")
