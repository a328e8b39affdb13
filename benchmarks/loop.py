"""What does the course's loop cost? It and a bare hand-written loop, in turns, in one process.

    python benchmarks/loop.py --rung baseline
    python benchmarks/loop.py --rung device device,precision=tf32 compile --out FILE

Both train on the same synthetic batch with the same flags. They take turns: whenever a block of
steps is over, and the course's loop asks for its next batch, the bare loop has a block of its own.
So both see the same seconds of a machine that others may use too, and a rung's model is compiled
during warm-up, once. The clock is neither's own: a stopwatch around each block, the device
synchronised both times. What a loop does before its warm-up and after its last step is not timed.
A ratio of 1 means that measuring costs nothing; the aim is 0.98 on a GPU and 0.97 on a CPU, where
the median of the turns' ratios is held against it. A line of JSON a rung is printed, and the exit
code is 1 where one fell short or failed.
"""

import argparse
import gc
import importlib.util
import json
import math
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from course.config import Config, parse_settings, rung
from course.data.loader import SYNTHETIC_CLASSES, Synthetic
from course.runs.run import PROJECT, Run
from course.training import models
from course.training.precision import HALF, resolve, set_tf32
from course.training.recorder import Recorder, cpu_name, device_name

AIM_GPU, AIM_CPU = 0.98, 0.97  # the least ratio that passes
COMMON = {"data": "synthetic", "epochs": 1, "val_steps": 0, "steps": 40}
LARGE = COMMON | {"batch_size": 256, "image_px": 224, "warmup_steps": 15}  # a large GPU is busy
SMALL = COMMON | {"warmup_steps": 5}  # and the quick size


class Turns:
    """The batches of the course's loop, which lets the bare loop have its turns between them.

    Attributes:
        seconds: of each turn's block, by loop.
        bare_loss: of the bare loop's last step.
    """

    def __init__(self, batch, bare, cfg: Config, device, turns: int) -> None:
        self.batch, self.bare, self.device = batch, bare, device
        self.warmup, self.turns = cfg.warmup_steps, turns
        self.block = (cfg.steps - cfg.warmup_steps) // turns
        self.seconds = {"course": [], "bare": []}

    def __iter__(self) -> Iterator:
        yield from self._batches(self.warmup)
        self._bare_steps(self.warmup)
        for turn in range(self.turns):
            if turn % 2 == 0:  # neither is always first, or a clock that drifts would favour one
                self._bare_turn()
            begin = self._now()
            yield from self._batches(self.block)
            self.seconds["course"].append(self._now() - begin)
            if turn % 2:
                self._bare_turn()

    def _batches(self, number: int) -> Iterator:
        for _ in range(number):
            yield self.batch

    def _bare_steps(self, number: int) -> None:
        for _ in range(number):
            self.bare_loss = next(self.bare)

    def _bare_turn(self) -> None:
        begin = self._now()
        self._bare_steps(self.block)
        self.seconds["bare"].append(self._now() - begin)

    def _now(self) -> float:
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)
        return time.perf_counter()


def course_loop(cfg: Config, batches) -> float:
    """solutions/train.py as it is, on these batches: the loss of its last step.

    Its run's folder is a real one, so that the steps are written as in a job.
    """
    spec = importlib.util.spec_from_file_location("train", PROJECT / "solutions" / "train.py")
    train = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(train)
    train.loaders = lambda *_, **__: (batches, [])
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder))
        (run.folder / "config.json").write_text(cfg.to_json())
        train.main(Recorder(run))
        return float(run.steps["loss"].iloc[-1])


def bare_loop(cfg: Config, batch, device) -> Iterator[torch.Tensor]:
    """The same training, written by hand without the course: yields the loss of each step."""
    torch.manual_seed(cfg.seed)
    set_tf32(cfg.precision == "tf32")
    layout = torch.channels_last if cfg.channels_last else torch.preserve_format
    model = models.create(cfg.model, SYNTHETIC_CLASSES).to(device, memory_format=layout).train()
    if cfg.compile:
        model = torch.compile(model, mode=cfg.compile)
    criterion = torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(
        model.parameters(),
        cfg.lr,
        momentum=cfg.momentum,
        weight_decay=cfg.weight_decay,
        fused=cfg.fused or None,
    )
    if cfg.fused:  # as in the course's: a loss that is NaN would be fast
        for weight in model.parameters():
            optimizer.state[weight]["momentum_buffer"] = torch.zeros_like(weight)
    half = cfg.precision in HALF
    autocast = torch.autocast(device.type, HALF[cfg.precision]) if half else nullcontext()
    scaler = torch.amp.GradScaler(device.type, enabled=cfg.precision == "fp16")
    while True:
        images, labels = batch
        images = images.to(memory_format=layout)
        with autocast:
            loss = criterion(model(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        yield loss.detach()


def measure(cfg: Config, turns: int) -> dict:
    """Ratio bare ÷ course of the seconds for the same steps, over some turns, and the losses.

    Raises:
        ValueError: too few steps for so many turns, or the two did not train alike.
    """
    if not 0 < turns <= cfg.steps - cfg.warmup_steps or not cfg.warmup_steps:
        raise ValueError(
            f"steps={cfg.steps} with warmup_steps={cfg.warmup_steps} cannot be divided into "
            f"{turns} turns: each needs a step, and each loop needs one of warm-up"
        )
    if cfg.compile:
        torch.compiler.reset()  # of the rung before
        torch._dynamo.config.fail_on_recompile_limit_hit = True  # or it goes on without compiling
    device = device_of(cfg)
    batch = next(iter(Synthetic(cfg, device)))
    both = Turns(batch, bare_loop(cfg, batch, device), cfg, device, turns)
    # One step more than there are batches: it asks for one, and so the last block ends.
    loss = course_loop(replace(cfg, steps=cfg.warmup_steps + turns * both.block + 1), both)
    bare_loss = float(both.bare_loss)
    if not math.isclose(loss, bare_loss, rel_tol=0.1, abs_tol=0.1):  # nor is NaN close to NaN
        raise ValueError(f"they did not train alike: loss {loss:.4g}, and {bare_loss:.4g} bare")
    seconds = {loop: np.array(times) for loop, times in both.seconds.items()}
    q1, median, q3 = np.percentile(seconds["bare"] / seconds["course"], [25, 50, 75])
    speed = {
        loop: both.block * cfg.batch_size / np.median(times) for loop, times in seconds.items()
    }
    return {
        "ratio": median,
        "ratio_q1": q1,
        "ratio_q3": q3,
        "images_per_s": speed["course"],
        "bare_images_per_s": speed["bare"],
        "turns": turns,
        "steps_a_turn": both.block,
        "loss": loss,
        "bare_loss": bare_loss,
    }


def device_of(cfg: Config) -> torch.device:
    """Where a config trains on this machine."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return accelerator if accelerator and cfg.device == "auto" else torch.device("cpu")


def config_of(text: str, settings: dict) -> Config:
    """`amp,precision=fp16` to a config: large on an accelerator, quick on a CPU.

    Raises:
        ValueError: no such rung or setting; the message lists those there are.
    """
    name, *pairs = text.split(",")
    settings = {**settings, **parse_settings(pairs)}
    device = {key: value for key, value in settings.items() if key == "device"}
    on_cpu = device_of(rung(name, **device)).type == "cpu"
    return resolve(rung(name, quick=on_cpu, **{**(SMALL if on_cpu else LARGE), **settings}))


def line(text: str, cfg: Config, turns: int, aim: float | None) -> dict:
    """What is printed of one rung: what ran where, what was measured, and whether it is enough."""
    device = device_of(cfg)
    if aim is None:
        aim = AIM_CPU if device.type == "cpu" else AIM_GPU
    said = {
        "run": text,
        "rung": cfg.rung,
        "precision": cfg.precision,
        "batch_size": cfg.batch_size,
        "image_px": cfg.image_px,
        "device": device.type,
        "machine": cpu_name() if device.type == "cpu" else device_name(device),
        "torch": torch.__version__,
        "aim": aim,
    }
    began = time.perf_counter()
    try:
        said |= measure(cfg, turns)
    except Exception as error:  # the other rungs are to be measured all the same
        traceback.print_exc()
        said["error"] = f"{type(error).__name__}: {error}"
    gc.collect()
    if device.type != "cpu":
        torch.accelerator.empty_cache()
    said["wall_s"] = time.perf_counter() - began
    return said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rung", nargs="+", default=["baseline"], metavar="NAME[,key=value…]")
    parser.add_argument("--set", nargs="*", default=[], metavar="key=value", help="of all rungs")
    parser.add_argument("--turns", type=int, default=5, help="into which the steps are divided")
    parser.add_argument("--aim", type=float, help="the least ratio that passes")
    parser.add_argument("--out", type=Path, help="also write the lines into this file")
    arguments = parser.parse_args()
    settings = parse_settings(arguments.set)
    configs = {text: config_of(text, settings) for text in arguments.rung}
    if arguments.out:
        arguments.out.write_text("")
    short = []
    for text, cfg in configs.items():
        found = line(text, cfg, arguments.turns, arguments.aim)
        print(json.dumps(found), flush=True)
        if arguments.out:
            with arguments.out.open("a") as file:
                file.write(json.dumps(found) + "\n")
        if not found.get("ratio", 0) >= found["aim"]:
            short.append(f"{text}: {found.get('error') or format(found['ratio'], '.3f')}")
    if short:
        raise SystemExit(
            "the course's loop falls short of the bare one's speed. " + "; ".join(short)
        )


if __name__ == "__main__":
    main()
