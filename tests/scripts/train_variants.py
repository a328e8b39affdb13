"""Train several scripts, each into a run's folder, in one process: importing torch takes longer.

    python train_variants.py narrow|whole FOLDER...

Each folder contains train.py and config.json, like a launched run's. "narrow": their resnet18
is the network in narrow.py.
"""

import importlib.util
import os
import signal
import sys
import traceback

import narrow
import torch

from course.runs.restarts import GO_ON
from course.runs.run import FOLDER_VARIABLE
from course.training import interruption
from course.training.recorder import recording

ENDED = (GO_ON, 128 + signal.SIGTERM, 128 + signal.SIGKILL)


def end_as(number):
    """Exit as a signal ends a separate process, so that another continues: here, the next call."""
    sys.exit(128 + number)


def train(folder):
    """Execute a script again: an earlier process of the same run has left only files."""
    signal.signal(signal.SIGTERM, lambda number, _: end_as(number))
    os.environ[FOLDER_VARIABLE] = folder
    spec = importlib.util.spec_from_file_location("train", f"{folder}/train.py")
    script = importlib.util.module_from_spec(spec)
    with recording() as run:
        spec.loader.exec_module(script)
        script.main(run)


def ends_early(folder):
    """Train, and return whether the process ended before the run did, and another must continue."""
    try:
        train(folder)
    except SystemExit as end:
        if end.code not in ENDED:
            raise
        return True
    return False


interruption.end_at_once = lambda: end_as(signal.SIGKILL)
if sys.argv[1] == "narrow":
    narrow.use()
for folder in sys.argv[2:]:
    try:
        if ends_early(folder):
            train(folder)
    except Exception:
        traceback.print_exc()
    finally:
        torch.use_deterministic_algorithms(False)
        narrow.leave_all()
