"""A task that says what it was given: its arguments and Slurm's variables, as a line of JSON."""

import json
import os
import sys

NAMES = [
    "JOB_ID",
    "JOBID",
    "PROCID",
    "LOCALID",
    "NODEID",
    "NTASKS",
    "NPROCS",
    "NNODES",
    "JOB_NUM_NODES",
    "NTASKS_PER_NODE",
    "TASKS_PER_NODE",
    "CPUS_PER_TASK",
    "JOB_NODELIST",
    "NODELIST",
    "JOB_NAME",
    "GPUS_ON_NODE",
    "STEP_GPUS",
    "SUBMIT_DIR",
    "LAUNCH_NODE_IPADDR",
    "ARRAY_TASK_ID",
]
wanted = [
    "SLURMD_NODENAME",
    "NCCL_DEBUG",
    "CUDA_VISIBLE_DEVICES",
    *(f"SLURM_{name}" for name in NAMES),
]
kept = {name: os.environ[name] for name in wanted if name in os.environ}
line = json.dumps({"arguments": sys.argv[1:], "python": sys.executable, **kept})
# At once, since print writes a line's end by itself; and short: srun mixes those above 1 KB.
sys.stdout.write(f"{line}\n")
