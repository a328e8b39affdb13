"""Train several scripts, each into a run's folder, in one process: importing torch takes longer.

    python train_variants.py narrow|whole FOLDER...

Each folder holds train.py and config.json, as a launched run's does. "narrow": what they call
resnet18 is the one of narrow.py.
"""

import importlib.util
import os
import sys
import traceback

import narrow
import torch

from course.runs.run import FOLDER_VARIABLE
from course.training.recorder import recording

if sys.argv[1] == "narrow":
    narrow.use()
for folder in sys.argv[2:]:
    os.environ[FOLDER_VARIABLE] = folder
    spec = importlib.util.spec_from_file_location("train", f"{folder}/train.py")
    script = importlib.util.module_from_spec(spec)
    try:
        with recording() as run:
            if run.config.compile:
                narrow.leave_kernels()
            spec.loader.exec_module(script)
            script.main(run)
    except Exception:
        traceback.print_exc()
    finally:
        for device in ("cpu", "cuda"):  # a script may have left it on
            torch.set_autocast_enabled(device, False)
