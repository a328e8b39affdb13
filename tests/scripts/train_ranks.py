"""One rank that trains several scripts, each into a run's folder: importing torch takes longer.

    RANK=0 WORLD_SIZE=2 python train_ranks.py PORT FOLDER...

Each folder contains train.py and config.json, like a launched run's. The ranks meet again for
each folder, on a different port.
"""

import importlib.util
import os
import sys
import traceback

import narrow
import torch
from torch import distributed

from course.runs.run import FOLDER_VARIABLE
from course.training.recorder import recording

narrow.use()
os.environ["MASTER_ADDR"] = "127.0.0.1"
for number, folder in enumerate(sys.argv[2:]):
    os.environ[FOLDER_VARIABLE] = folder
    os.environ["MASTER_PORT"] = str(int(sys.argv[1]) + number)
    spec = importlib.util.spec_from_file_location("train", f"{folder}/train.py")
    script = importlib.util.module_from_spec(spec)
    try:
        with recording() as run:
            spec.loader.exec_module(script)
            script.main(run)
    except Exception:
        traceback.print_exc()
    finally:
        narrow.leave_all()
        if distributed.is_initialized():
            distributed.destroy_process_group()
        torch.compiler.reset()  # a later script's blocks would find graphs of this script
        # Groups are identified by number, and a script may have created one on only one rank.
        distributed.distributed_c10d._world.group_count = 0
