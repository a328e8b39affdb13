"""What does the course's loop cost? It and a bare hand-written loop, in turns, in one run.

    python benchmarks/loop.py --rung baseline

Both train on the same synthetic batch with the same flags. The clock is neither's own: a
stopwatch in the batches starts after warm-up and stops when the loop is over, the device
synchronised both times. A ratio of 1 means that measuring costs nothing; the aim is 0.97 on a
CPU. Machines that others share are noisy, hence turns, and the median of their ratios.
"""

import argparse
import gc
import importlib.util
import json
import time
from contextlib import nullcontext

import numpy as np
import torch

from course import models
from course.config import LADDER, Config, parse_settings, rung
from course.data.loader import SYNTHETIC_CLASSES, Synthetic
from course.precision import HALF, set_tf32
from course.recorder import Recorder
from course.runs import PROJECT

WANTED = 0.97


class Stopwatch:
    """Batches that start a clock when the first one after warm-up is asked for."""

    def __init__(self, batches, device, warmup):
        self.batches, self.device, self.warmup = batches, device, warmup

    def __iter__(self):
        for number, batch in enumerate(self.batches):
            if number == self.warmup:
                self.begin = self._now()
            yield batch

    def seconds(self):
        return self._now() - self.begin

    def _now(self):
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)
        return time.perf_counter()


def course_loop(cfg, watch, _device):
    """solutions/train.py as it is, with the stopwatch among its batches."""
    spec = importlib.util.spec_from_file_location("train", PROJECT / "solutions" / "train.py")
    train = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(train)
    train.loaders = lambda *_: (watch, watch, SYNTHETIC_CLASSES)
    run = Recorder(None)
    run.config = cfg
    train.main(run)
    return watch.seconds()


def bare_loop(cfg, watch, device):
    """The same training, written by hand without the course."""
    torch.manual_seed(cfg.seed)
    set_tf32(cfg.tf32)
    layout = torch.channels_last if cfg.channels_last else torch.preserve_format
    model = models.create(cfg.model, SYNTHETIC_CLASSES).to(device, memory_format=layout).train()
    criterion = torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(
        model.parameters(), cfg.lr, momentum=cfg.momentum, weight_decay=cfg.weight_decay
    )
    half = cfg.precision in HALF
    autocast = torch.autocast(device.type, HALF[cfg.precision]) if half else nullcontext()
    scaler = torch.amp.GradScaler(device.type, enabled=cfg.precision == "fp16")
    for _, (images, labels) in zip(range(cfg.steps), watch):
        images = images.to(memory_format=layout)
        with autocast:
            loss = criterion(model(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
    return watch.seconds()


def once(loop, cfg: Config, device) -> float:
    """Seconds of the measured steps of one loop."""
    batches = Synthetic(cfg, device)
    seconds = loop(cfg, Stopwatch(batches, device, cfg.warmup_steps), device)
    gc.collect()
    if device.type != "cpu":
        torch.accelerator.empty_cache()
    return seconds


def measure(cfg: Config, turns: int) -> dict:
    """Ratio bare ÷ course of the time for the same steps, over some turns."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    device = accelerator if accelerator and cfg.device == "auto" else torch.device("cpu")
    once(course_loop, cfg, device)  # dropped: it pays for imports and for a cold processor
    ratios, speeds = [], []
    for turn in range(turns):
        order = (course_loop, bare_loop) if turn % 2 else (bare_loop, course_loop)
        seconds = {loop: once(loop, cfg, device) for loop in order}
        ratios.append(seconds[bare_loop] / seconds[course_loop])
        speeds.append(cfg.batch_size * (cfg.steps - cfg.warmup_steps) / seconds[course_loop])
        print(f"turn {turn + 1}: {speeds[-1]:.4g} images/s, ratio {ratios[-1]:.3f}", flush=True)
    q1, median, q3 = np.percentile(ratios, [25, 50, 75])
    return {"rung": cfg.rung, "device": device.type, "ratio": median, "ratio_q1": q1,
            "ratio_q3": q3, "images_per_s": float(np.median(speeds)), "turns": turns}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rung", choices=LADDER, default="baseline")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--set", nargs="*", default=[], metavar="key=value")
    arguments = parser.parse_args()
    small = {"steps": 16, "warmup_steps": 4, "epochs": 1, "val_steps": 0, "data": "synthetic"}
    settings = {**small, **parse_settings(arguments.set)}
    result = measure(rung(arguments.rung, quick=True, **settings), arguments.turns)
    print(json.dumps(result))
    if result["ratio"] < WANTED:
        raise SystemExit(f"the course's loop reaches {result['ratio']:.3f} of the bare one's speed")


if __name__ == "__main__":
    main()
