"""A task that prints its arguments and Slurm's variables as a line of JSON."""

import json
import os
import re
import sys

OTHERS = ("SLURMD_NODENAME", "NCCL_DEBUG", "CUDA_VISIBLE_DEVICES")
NAMES = re.compile(
    "SLURM_(JOB_?ID|PROCID|LOCALID|NODEID|NTASKS|NPROCS|(JOB_NUM_)?N?NODES|N?TASKS_PER_NODE|"
    "CPUS_PER_TASK|(JOB_)?NODELIST|JOB_NAME|(STEP_GPUS|GPUS_ON_NODE)|SUBMIT_DIR|"
    "LAUNCH_NODE_IPADDR|ARRAY_TASK_ID)"
)
kept = {k: v for k, v in os.environ.items() if k in OTHERS or NAMES.fullmatch(k)}
line = json.dumps({"arguments": sys.argv[1:], "python": sys.executable, **kept})
# In one call, because print writes the newline separately; and short: srun mixes lines > 1 KB.
sys.stdout.write(f"{line}\n")
