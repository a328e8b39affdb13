"""Train several scripts, each into a run's folder, in one process: importing torch takes longer.

    python train_variants.py narrow|whole FOLDER...

Each folder holds train.py and config.json, as a launched run's does. "narrow": what they call
resnet18 is the one of narrow.py.
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
    """What a signal does to a process of its own, so that another goes on; here the next call."""
    sys.exit(128 + number)


def train(folder):
    """Execute a script anew: what another process of the same run has left are files alone."""
    signal.signal(signal.SIGTERM, lambda number, _: end_as(number))
    os.environ[FOLDER_VARIABLE] = folder
    spec = importlib.util.spec_from_file_location("train", f"{folder}/train.py")
    script = importlib.util.module_from_spec(spec)
    with recording() as run:
        if run.config.compile:
            narrow.leave_kernels()
        spec.loader.exec_module(script)
        script.main(run)


def ends_early(folder):
    """Has a process of this run ended before the run? Nothing of it is there any more, then."""
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
