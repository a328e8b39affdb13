"""Measure what the course's loop costs: the loop and a bare hand-written one, in turns.

    python benchmarks/loop.py --rung baseline
    python benchmarks/loop.py --rung device device,precision=tf32 compile --out FILE

Both train in one process on the same synthetic batch with the same flags. They take turns: when a
block of steps ends and the course's loop requests its next batch, the bare loop runs a block. So
changes of the machine's speed affect both, and a rung's model is compiled only once, during
warm-up. A separate stopwatch times each block, with the device synchronised before and after.
Work before the warm-up and after the last step is not timed. A ratio of 1 means that measuring
costs nothing; the limits for the median ratio are 0.98 on a GPU and 0.97 on a CPU. The output is
one line of JSON per rung; the exit code is 1 if a rung is below its limit or failed.
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

AIM_GPU, AIM_CPU = 0.98, 0.97  # lowest ratio that passes
COMMON = {"data": "synthetic", "epochs": 1, "val_steps": 0, "steps": 40}
LARGE = COMMON | {
    "batch_size": 256,
    "image_px": 224,
    "warmup_steps": 15,
}
SMALL = COMMON | {"warmup_steps": 5}  # the quick size


class Turns:
    """The batches of the course's loop; between blocks, the bare loop takes its turns.

    Attributes:
        seconds: of each turn's block, by loop.
        bare_loss: loss of the bare loop's last step.
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
            if turn % 2 == 0:  # alternate the order, because clocks may drift
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
    """Train with solutions/train.py on these batches; return the loss of the last step.

    The run has a real folder, so the steps are written as in a job.
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
    """Run the same training, written by hand without the course; yield the loss of each step."""
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
    if cfg.fused:  # as in the course's loop: steps with NaN would be faster
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
    """Return the ratio bare ÷ course of the seconds for the same steps, and the losses.

    Raises:
        ValueError: too few steps for this many turns, or the losses of the two loops differ.
    """
    if not 0 < turns <= cfg.steps - cfg.warmup_steps or not cfg.warmup_steps:
        raise ValueError(
            f"steps={cfg.steps} with warmup_steps={cfg.warmup_steps} cannot be divided into "
            f"{turns} turns: each needs a step, and each loop needs one of warm-up"
        )
    if cfg.compile:
        torch.compiler.reset()  # compiled code of the previous rung
        torch._dynamo.config.fail_on_recompile_limit_hit = True  # raise an error
    device = device_of(cfg)
    batch = next(iter(Synthetic(cfg, device)))
    turns_ = Turns(batch, bare_loop(cfg, batch, device), cfg, device, turns)
    # One more step than there are batches: the request for its batch ends the last block.
    loss = course_loop(replace(cfg, steps=cfg.warmup_steps + turns * turns_.block + 1), turns_)
    bare_loss = float(turns_.bare_loss)
    if not math.isclose(loss, bare_loss, rel_tol=0.1, abs_tol=0.1):  # nor is NaN close to NaN
        raise ValueError(f"the losses differ: {loss:.4g}, and {bare_loss:.4g} in the bare loop")
    seconds = {loop: np.array(times) for loop, times in turns_.seconds.items()}
    q1, median, q3 = np.percentile(seconds["bare"] / seconds["course"], [25, 50, 75])
    speed = {
        loop: turns_.block * cfg.batch_size / np.median(times) for loop, times in seconds.items()
    }
    return {
        "ratio": median,
        "ratio_q1": q1,
        "ratio_q3": q3,
        "images_per_s": speed["course"],
        "bare_images_per_s": speed["bare"],
        "turns": turns,
        "steps_a_turn": turns_.block,
        "loss": loss,
        "bare_loss": bare_loss,
    }


def device_of(cfg: Config) -> torch.device:
    """Return the device on which a config trains on this machine."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return accelerator if accelerator and cfg.device == "auto" else torch.device("cpu")


def config_of(text: str, settings: dict) -> Config:
    """Parse `amp,precision=fp16` to a config: large on an accelerator, quick on a CPU.

    Raises:
        ValueError: no such rung or setting; the message lists the valid ones.
    """
    name, *pairs = text.split(",")
    settings = {**settings, **parse_settings(pairs)}
    device = {key: value for key, value in settings.items() if key == "device"}
    on_cpu = device_of(rung(name, **device)).type == "cpu"
    return resolve(rung(name, quick=on_cpu, **{**(SMALL if on_cpu else LARGE), **settings}))


def line(text: str, cfg: Config, turns: int, aim: float | None) -> dict:
    """Measure one rung; return its row: configuration, machine, results, and the limit."""
    device = device_of(cfg)
    if aim is None:
        aim = AIM_CPU if device.type == "cpu" else AIM_GPU
    row = {
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
        row |= measure(cfg, turns)
    except Exception as error:  # continue with the other rungs
        traceback.print_exc()
        row["error"] = f"{type(error).__name__}: {error}"
    gc.collect()
    if device.type != "cpu":
        torch.accelerator.empty_cache()
    row["wall_s"] = time.perf_counter() - began
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rung", nargs="+", default=["baseline"], metavar="NAME[,key=value…]")
    parser.add_argument("--set", nargs="*", default=[], metavar="key=value", help="of all rungs")
    parser.add_argument("--turns", type=int, default=5, help="into which the steps are divided")
    parser.add_argument("--aim", type=float, help="lowest ratio that passes")
    parser.add_argument("--out", type=Path, help="also write the lines into this file")
    arguments = parser.parse_args()
    settings = parse_settings(arguments.set)
    configs = {text: config_of(text, settings) for text in arguments.rung}
    if arguments.out:
        arguments.out.write_text("")
    short = []
    for text, cfg in configs.items():
        row = line(text, cfg, arguments.turns, arguments.aim)
        print(json.dumps(row), flush=True)
        if arguments.out:
            with arguments.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
        if not row.get("ratio", 0) >= row["aim"]:
            short.append(f"{text}: {row.get('error') or format(row['ratio'], '.3f')}")
    if short:
        raise SystemExit(
            "the course's loop falls short of the bare one's speed. " + "; ".join(short)
        )


if __name__ == "__main__":
    main()
