"""Train several scripts, each into a run's folder, in one process: importing torch takes longer.

    python train_variants.py narrow|whole FOLDER...

Each folder contains train.py and config.json, like a launched run's. "narrow": their resnet18
is the network in narrow.py. A run that is interrupted goes on at once.
"""

import importlib.util
import os
import sys
import traceback

import narrow
import torch

from course.runs.restarts import GO_ON
from course.runs.run import FOLDER_VARIABLE
from course.training.recorder import recording


def train(folder):
    """Execute the script of a run's folder."""
    os.environ[FOLDER_VARIABLE] = folder
    spec = importlib.util.spec_from_file_location("train", f"{folder}/train.py")
    script = importlib.util.module_from_spec(spec)
    try:
        with recording() as run:
            spec.loader.exec_module(script)
            script.main(run)
    except SystemExit as end:
        if end.code != GO_ON:
            raise
        train(folder)


if sys.argv[1] == "narrow":
    narrow.use()
for folder in sys.argv[2:]:
    try:
        train(folder)
    except Exception:
        traceback.print_exc()
    finally:
        torch.use_deterministic_algorithms(False)
        narrow.leave_all()
