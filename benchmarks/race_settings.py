"""Try settings of the race's scripts, several at a time, and say how accurate they were when.

    python benchmarks/race_settings.py OUT.jsonl --seconds 300

On a GPU one training after another; on the other cores, two for each, those of track cpu. What is
tried stands in TRIED, what matters most first; each line of OUT is one training. It reads the
validation crops after every epoch, outside the time: to choose settings, never to enter the race.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import json
import os
import queue
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).resolve().parents[1] / "solutions" / "race"
WHOLE = {"SMALL": {}}
# Script, track, and what is otherwise: fields of SETTINGS, or in capitals the script's constants.
TRIED: list[tuple[str, str, dict[str, Any]]] = [
    ("fast", "gpu", {}),
    ("plain", "gpu", {}),
    ("one_cycle", "gpu", {}),
    ("progressive", "gpu", {}),
    *(
        ("fast", "gpu", {"epochs": epochs, "WIDE": wide, "lr": lr})
        for epochs in (4, 6, 3)
        for wide in (64, 96, 32)
        for lr in (0.1, 0.2)
    ),
    ("fast", "gpu", {"batch_size": 1024, "steps": 64, "lr": 0.2}),
    ("fast", "gpu", {"batch_size": 256, "steps": 256}),
    ("fast", "gpu", {"epochs": 8}),
    ("plain", "gpu", {"epochs": 10}),
    ("plain", "gpu", {"lr": 0.3}),
    ("one_cycle", "gpu", {"epochs": 8}),
    ("one_cycle", "gpu", {"lr": 0.6}),
    ("progressive", "gpu", {"epochs": 8}),
    ("progressive", "gpu", {"epochs": 7, "SMALL": 0.3}),
    ("plain", "cpu", {}),
    ("one_cycle", "cpu", {}),
    ("progressive", "cpu", {}),
    ("fast", "cpu", WHOLE | {"lr": 0.2, "steps": 160}),
    ("fast", "cpu", {"lr": 0.2}),
    ("fast", "cpu", WHOLE | {"lr": 0.2}),
    ("fast", "cpu", {"lr": 0.2, "SMALL": {"cpu": 0.25}}),
    ("fast", "cpu", WHOLE | {"lr": 0.3, "steps": 160}),
    ("fast", "cpu", WHOLE | {"lr": 0.2, "steps": 160, "WIDTH": {"cpu": 12}}),
    ("fast", "cpu", WHOLE | {"lr": 0.2, "steps": 160, "WIDTH": {"cpu": 20}}),
    ("plain", "cpu", {"lr": 0.2}),
    ("plain", "cpu", {"epochs": 5}),
    ("one_cycle", "cpu", {"epochs": 5}),
    ("one_cycle", "cpu", {"lr": 0.1}),
    ("progressive", "cpu", {"epochs": 5}),
    ("progressive", "cpu", {"epochs": 5, "ema": 0.95, "SMALL": 0.4}),
    ("fast", "cpu", WHOLE | {"lr": 0.2, "steps": 160, "VECTORS_LR": 0.3}),
    ("fast", "cpu", WHOLE | {"lr": 0.2, "steps": 160, "MOMENTUM": 0.8}),
    ("fast", "cpu", WHOLE | {"lr": 0.2, "steps": 160, "RISE": 0.1}),
    ("fast", "cpu", WHOLE | {"lr": 0.2, "steps": 320, "batch_size": 128}),
    ("fast", "cpu", WHOLE | {"lr": 0.2, "steps": 160, "PAD": 2}),
    ("fast", "cpu", WHOLE | {"lr": 0.2, "steps": 160, "label_smoothing": 0.2}),
]


def one(script: str, track: str, changes: dict[str, Any], seed: int) -> dict[str, Any]:
    """One training in this process: seconds and accuracy after every epoch."""
    import torch

    from course.race import tracks

    spec = importlib.util.spec_from_file_location(script, SCRIPTS / f"{script}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in [key for key in changes if key.isupper()]:
        setattr(module, name, changes[name])
    own = {key: value for key, value in changes.items() if not key.isupper()}
    config = tracks.get(track).config(module.SETTINGS[track] | own, script, seed)
    run = Tried(config, torch)
    module.main(run)
    return {"script": script, "track": track, "changes": changes, "seed": seed, "way": run.way}


class Tried:
    """Stands in for the recorder: asks at once how good the weights are."""

    rank = local_rank = 0
    world_size = 1

    def __init__(self, config: Any, torch: Any) -> None:
        from course.data import crop_set

        self.config, self.torch, self.way = config, torch, []
        self.crops = crop_set.Crops(crop_set.ensure(), "val")
        self.began, self.aside_s = time.perf_counter(), 0.0

    def _now(self) -> float:
        if self.torch.cuda.is_available():
            self.torch.cuda.synchronize()
        return time.perf_counter() - self.began - self.aside_s

    def ready(self) -> None:
        self.way.append(("ready", round(self._now(), 3), None))

    def keep_weights(self, net: Any, what: str = "epoch") -> None:
        now = self._now()
        self.way.append((what, round(now, 3), round(self._accuracy(net), 4)))
        self.aside_s += self._now() - now

    def save_weights(self, net: Any) -> None:
        self.keep_weights(net, "end")

    def save_network(self, net: Any) -> None:
        pass

    def _accuracy(self, net: Any) -> float:
        from course.data.loader import normalised

        mode, device = net.training, next(net.parameters()).device
        net.eval()
        with self.torch.no_grad():
            right = 0
            parts = zip(self.crops.images.split(1024), self.crops.labels.split(1024))
            for images, labels in parts:
                scores = net(normalised(images.to(device)))
                right += int((scores.argmax(1).cpu() == labels).sum())
        net.train(mode)
        return right / len(self.crops)


def worker(jobs: str, out: str, until: float) -> None:
    """Try some in this process, one after the other, until the time is over."""
    for script, track, changes, seed in ast.literal_eval(jobs):
        if time.time() > until:
            break
        try:
            found = one(script, track, changes, seed)
        except Exception:
            found = {"script": script, "track": track, "changes": changes}
            found["error"] = traceback.format_exc()[-1500:]
        line = json.dumps(found) + "\n"
        with Path(out).open("a") as file:
            file.write(line)


def main() -> None:
    """Share the trials out, to the GPU and to pairs of cores."""
    asked = argparse.ArgumentParser()
    asked.add_argument("out")
    asked.add_argument("--seconds", type=float, default=300)
    asked.add_argument("--worker", default="")
    asked.add_argument("--until", type=float, default=0)
    asked = asked.parse_args()
    if asked.worker:
        worker(asked.worker, asked.out, asked.until)
        return
    until, cores = time.time() + asked.seconds, sorted(os.sched_getaffinity(0))
    jobs = [(*each, seed) for seed in (0, 1) for each in TRIED]

    def start(some: list[Any], own: list[int]) -> None:
        command = [sys.executable, __file__, asked.out, "--worker", repr(some)]
        command += ["--until", str(until)]
        threads = {"OMP_NUM_THREADS": str(len(own))}
        process = subprocess.Popen(
            command,
            env=os.environ | threads,
            preexec_fn=lambda: os.sched_setaffinity(0, own),
        )
        process.wait(max(1.0, until + 120 - time.time()))

    threads = [threading.Thread(target=start, args=([j for j in jobs if j[1] == "gpu"], cores[:4]))]
    left: queue.Queue = queue.Queue()
    for job in (each for each in jobs if each[1] == "cpu"):
        left.put(job)

    def drain(own: list[int]) -> None:
        while time.time() < until and not left.empty():
            start([left.get()], own)

    pairs = [cores[at : at + 2] for at in range(4, len(cores) - 1, 2)]
    threads += [threading.Thread(target=drain, args=(pair,)) for pair in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
