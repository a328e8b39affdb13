"""Take steps that only sleep, to test the order of a run's blocks without a network.

Each step writes when it began and ended (time.monotonic is the same for all processes). With
`dies.json` in the run's folder: {"step": n, "by": "SIGKILL" or "error"}.
"""

import json
import os
import signal
import time

import torch

from course.training.meter import Meter
from course.training.recorder import recording
from trainspeed.phases import PHASES

with recording() as run:
    meter = Meter(run, torch.device("cpu"))
    folder = run.folder
    dies = json.loads((folder / "dies.json").read_text()) if (folder / "dies.json").exists() else {}
    with (folder / "spans.jsonl").open("a") as spans:
        for _ in meter.steps([(torch.zeros(1), torch.zeros(1))] * run.config.steps, epoch=0):
            began = time.monotonic()
            if meter.step == dies.get("step"):
                if dies["by"] == "error":
                    raise RuntimeError("as asked")
                os.kill(os.getpid(), getattr(signal, dies["by"]))
            time.sleep(run.config.lr)
            for phase in PHASES:
                meter.lap(phase, torch.tensor(1.0) if phase == "optimizer" else None)
            spans.write(json.dumps([began, time.monotonic()]) + "\n")
            spans.flush()
