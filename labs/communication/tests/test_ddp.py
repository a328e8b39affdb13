"""The function that learners write: right answers pass, and wrong ones hear what is wrong."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pandas as pd
import pytest
import torch
from torch import distributed
from torch.profiler import profile
from torchmetrics.classification import MulticlassAccuracy
from written_helpers import cell_of, defined, filled

from course.analysis import on_ranks, recorded_links
from course.checks.functions import check_written
from course.checks.script_variants import script_variant
from course.config import rung
from course.jobs.launch import launch, wait
from labs import communication as lab
from labs.communication import ddp

IMPORTS = "from torch import distributed\nimport torch\n"
ANSWERS = {
    "make_buckets": ["sum(each.nbytes for each in buckets[-1]) >= limit"],
    "send": [
        "[weight.grad.flatten() for weight in bucket]",
        "distributed.all_reduce(gradients, async_op=True)",
    ],
    "receive": ["handle.wait()", "gradients /= ranks"],
    "watch": [
        "if len(ready) == len(bucket):\n"
        "            under_way.append((bucket, *send(bucket)))\n"
        "            ready.clear()"
    ],
    "average_gradients": ["while under_way:\n            receive(*under_way.pop(0))"],
}
RIGHT = {
    "a countdown, means before sending, futures, gradients that are views": """
from functools import partial


def start(bucket, missing, futures, weight):
    missing.discard(weight)
    if not missing:
        message = torch.cat([each.grad.reshape(-1) for each in bucket]) / RANKS()
        futures[bucket] = distributed.all_reduce(message, async_op=True).get_future()
        missing.update(bucket)


def RANKS():
    return distributed.get_world_size()


def average_gradients(weights, limit):
    futures, bucket = {}, []
    for weight in [*weights][::-1]:
        bucket.append(weight)
        if sum(each.nbytes for each in bucket) >= limit:
            register(bucket, futures)
            bucket = []
    if bucket:
        register(bucket, futures)

    def wait():
        for bucket, future in futures.items():
            message, = future.wait()
            for weight in bucket:
                weight.grad = message[: weight.numel()].view(weight.shape)
                message = message[weight.numel() :]
        futures.clear()

    return wait


def register(bucket, futures):
    hook = partial(start, tuple(bucket), set(bucket), futures)
    for weight in bucket:
        weight.register_post_accumulate_grad_hook(hook)
""",
    "a class whose buckets stay in memory, an imported all_reduce": """
from torch.distributed import ReduceOp, all_reduce


class Bucket:
    def __init__(self, weights):
        self.weights, self.ready, self.handle = weights, 0, None
        self.memory = weights[0].new_empty(sum(weight.numel() for weight in weights))
        self.parts = dict(zip(weights, self.memory.split([w.numel() for w in weights])))
        for weight in weights:
            weight.register_post_accumulate_grad_hook(self.add)

    def add(self, weight):
        self.parts[weight].copy_(weight.grad.flatten())
        self.ready += 1
        if self.ready == len(self.weights):
            self.handle = all_reduce(self.memory, ReduceOp.SUM, None, True)

    def finish(self):
        while not self.handle.is_completed():
            pass
        self.handle, self.ready = None, 0
        for weight, part in self.parts.items():
            weight.grad = part.view_as(weight).div(distributed.get_world_size())


def average_gradients(weights, limit):
    weights, buckets = list(weights), []
    while weights:
        chosen, size = [], 0
        while weights and size < limit:
            chosen.append(weights.pop())
            size += chosen[-1].numel() * chosen[-1].element_size()
        buckets.append(Bucket(chosen))
    return lambda: [bucket.finish() for bucket in buckets]
""",
}
# A hook in a loop, which uses the loop's last bucket.
LOOP = """
def average_gradients(weights, limit):
    under_way = []
    for bucket in make_buckets(weights, limit):
        ready = []

        def hook(weight):
            ready.append(weight)
            if len(ready) == len(bucket):
                under_way.append((bucket, *send(bucket)))
                ready.clear()

        for weight in bucket:
            weight.register_post_accumulate_grad_hook(hook)

    def wait():
        while under_way:
            receive(*under_way.pop(0))

    return wait
"""
BOUND = LOOP.replace("hook(weight):", "hook(weight, bucket=bucket, ready=ready):")
COMPLETE = "if len(ready) == len(bucket):"
OWN = "is this rank's own, not the mean"
# The function, its answers or its text, and what the learner reads.
WRONG = [
    (
        "make_buckets",
        ["len(buckets[-1]) >= limit"],
        "all-reduces: 1, of .492. bytes, expected one per bucket: 3",
    ),
    ("make_buckets", ["sum(each.numel() for each in buckets[-1]) >= limit"], "140 bytes or more"),
    ("make_buckets", ["True"], "all-reduces: 6, .*: 3, .* one message of each"),
    (
        "make_buckets",
        ["sum(w.nbytes for w in buckets[-1]) > limit"],
        "2, of .396, 96. bytes.*140 bytes or more",
    ),
    (
        "make_buckets",
        "def make_buckets(weights, limit):\n    w = [*weights]\n    return [w[:2], w[2:4], w[4:]]",
        "3, of .288, 108, 96. .* 3, of .256, 140, 96. bytes. Begin with the last weight",
    ),
    ("send", ["[w.grad for w in bucket]", "None"], "in line 3 of `send`: Tensors must"),
    (
        "send",
        [ANSWERS["send"][0], "distributed.all_reduce(gradients)"],
        "in line 4 of `receive`.* returns a handle only if async_op=True",
    ),
    (
        "send",
        [
            ANSWERS["send"][0],
            "distributed.all_reduce(gradients, async_op=True) if distributed.get_rank() else None",
        ],
        "does every rank start the same all-reduces|only if async_op",
    ),
    (
        "send",
        "class Finished:\n    wait = print\n\n\ndef send(bucket):\n"
        f"    gradients = torch.cat({ANSWERS['send'][0]})\n"
        "    distributed.all_reduce(gradients)\n    return gradients, Finished()",
        "all_reduce made backward wait for its result: expected async_op=True",
    ),
    ("receive", ["handle.wait()", "pass"], "rank 0, step 1: .*sum over the ranks, expected the me"),
    ("receive", ["pass", ANSWERS["receive"][1]], "is the all-reduce waited for before its result"),
    ("receive", [*reversed(ANSWERS["receive"])], "sum over the ranks, expected the mean: divide"),
    ("receive", ["handle.wait()", "gradients /= ranks**2"], "1/3 of DDP's: divide by .* only once"),
    ("receive", ["handle.wait()", "return"], f"{OWN}: wait for the all-reduce, then copy"),
    (
        "watch",
        [ANSWERS["watch"][0].replace("            ready.clear()", "")],
        "step 2: no all-reduce was started, expected 3: .* ready for the next step",
    ),
    ("watch", [ANSWERS["watch"][0].replace(COMPLETE, "if ready:")], "of `send`.* not ready yet"),
    (
        "watch",
        [ANSWERS["watch"][0] + "\n            under_way[-1][-1].wait()"],
        "called during backward, expected afterwards",
    ),
    ("average_gradients", ["pass"], f"{OWN}: wait for the all-reduce"),
    ("average_gradients", ["for each in under_way:\n            receive(*each)"], "forget an all"),
    (
        "average_gradients",
        ["while under_way:\n            receive(*under_way[0])"],
        "in line . of `receive`: the same all-reduce is waited for again .*: remove it from the",
    ),
    ("average_gradients", ["receive(*under_way.pop())"], f"0.*weight {OWN}|0.*bias {OWN}|begins"),
    ("average_gradients", LOOP, "of `send`.* uses the loop's last bucket, whichever weight calls"),
    ("average_gradients", BOUND.split("    def wait")[0], "it returns NoneType, expected a functi"),
    (
        "average_gradients",
        BOUND.replace("weights, limit):\n        ready", "weights, limit)[:-1]:\n        ready"),
        f"{OWN}: 2 all-reduces, expected 3. The last bucket does not reach the limit: is it sent",
    ),
    (
        "average_gradients",
        BOUND.replace("*send(bucket)", "").replace(
            "receive(*under_way.pop(0))",
            "bucket, = under_way.pop(0)\n            receive(bucket, *send(bucket))",
        ),
        "started after backward, expected with . of 6 gradients ready: start it in the hook",
    ),
    (
        "average_gradients",
        BOUND.replace(COMPLETE, "if len(ready) == len(bucket) and buckets.append(bucket) is None:")
        .replace(
            "under_way = []",
            "all_buckets = make_buckets(weights, limit)\n    under_way, buckets = [], []",
        )
        .replace("in make_buckets(weights, limit)", "in all_buckets")
        .replace(
            "                under_way.append((bucket, *send(bucket)))",
            "                if len(buckets) == len(all_buckets):\n"
            "                    under_way.extend((b, *send(b)) for b in buckets)\n"
            "                    buckets.clear()",
        ),
        "started with 6 of 6 gradients ready, expected with . of 6",
    ),
]


@pytest.fixture
def write(tmp_path: Path, runs_root: Path) -> Callable[..., Callable]:
    """Return a function that defines the lab's functions as a learner who fills the cells would."""

    def define(changed: str = "", answers: list[str] | str = "", blank: str = "") -> Callable:
        cells = []
        for name, right in ANSWERS.items():
            text = cell_of("communication", name)
            given = answers if name == changed else right
            text = (
                given if isinstance(given, str) else filled(text, *given if name != blank else ())
            )
            cells.append(text)
        return defined("\n\n".join(cells), "average_gradients", tmp_path, IMPORTS)

    return define


def test_a_blank_in_a_helper_is_found(write: Callable) -> None:
    for name in ANSWERS:
        (correct, *_) = check_written("communication.ddp", write(blank=name)).parts
        assert "a blank is left" in correct.evidence and "..." in correct.look_at
        assert name == "average_gradients" or correct.look_at.startswith(f"{name}, line ")


@pytest.mark.slow
def test_right_answers_pass(write: Callable, tmp_path: Path) -> None:
    assert check_written("communication.ddp", mine := write()).function is mine
    for text in RIGHT.values():
        checked = check_written(
            "communication.ddp", defined(text, "average_gradients", tmp_path, IMPORTS)
        )
        assert checked.passed, checked


@pytest.mark.slow
@pytest.mark.parametrize(("name", "answers", "words"), WRONG)
def test_wrong_answers_hear_what_is_wrong(
    write: Callable, name: str, answers: list[str] | str, words: str
) -> None:
    checked = check_written("communication.ddp", write(name, answers))
    text = repr(checked)
    assert checked.failed and re.search(words, text), text
    assert checked.function is ddp.average_gradients


@pytest.mark.slow
def test_a_network_trains_as_with_ddp(runs_root: Path) -> None:
    lines = lab.script_lines(ddp.average_gradients)
    small = {"model": "resnet18", "image_px": 32, "batch_size": 8, "data": "synthetic"}
    config = rung("baseline", quick=True, **small, steps=3, warmup_steps=1, val_steps=0)
    scripts = ("solutions/train.py", script_variant("written", lines))
    runs = [launch(script, config, gpus=2) for script in scripts]
    wait(runs, timeout_s=300)
    ours, theirs = (run.steps["loss"] for run in runs)
    pd.testing.assert_series_equal(ours, theirs, rtol=1e-5)
    first = [run.evidence().collectives for run in runs]
    assert first == [{"broadcast": 2, "allreduce": 1}, {"broadcast": 2, "allreduce": 2}]


NOTEBOOK = """
import json
from dataclasses import dataclass
import torch
import torch.distributed as dist
from labs import communication as lab

HALF = torch.bfloat16


@dataclass
class Message:
    values: object


def message(values):
    return Message(values)


def average_gradients(weights, limit):
    return lambda: (message(HALF).values, dist.ReduceOp.SUM)


print(json.dumps(lab.script_lines(average_gradients)))
"""


def test_a_script_gets_all_that_a_notebooks_function_uses(runs_root: Path) -> None:
    command = [sys.executable, "-c", NOTEBOOK]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines = json.loads(printed)
    compile(script_variant("names", lines).read_text(), "train.py", "exec")
    names = {}
    exec(dedent(lines["import torch"]), names)
    assert names["average_gradients"](None, 0)() == (torch.bfloat16, distributed.ReduceOp.SUM)


def _collectives_of_a_metric(rank: int, ranks: int) -> int:
    accuracy = MulticlassAccuracy(16, average="micro")
    accuracy.update(torch.eye(16), torch.arange(16))
    with profile() as traced:
        accuracy.compute()
    return sum(event.name.startswith("c10d::") for event in traced.events())


@pytest.mark.slow
def test_a_metric_needs_as_many_collectives_as_the_lab_says() -> None:
    assert on_ranks(_collectives_of_a_metric, 2) == [12, 12]


def test_time_is_drawn_by_size() -> None:
    assert "4 GPUs, 2 hosts" in lab.plot_link_times(recorded_links("nvidia-h100-x4")).alt
