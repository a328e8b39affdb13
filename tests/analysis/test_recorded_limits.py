"""What trainspeed says about the H100's recorded traces, against what the next rungs gained."""

from pathlib import Path

import pytest

from course import trace_path
from course.runs import recordings
from trainspeed.gpus import gpu_rates
from trainspeed.html import html_of
from trainspeed.limits import limits_of
from trainspeed.page import values_of
from trainspeed.parts import parts_of
from trainspeed.profile import Profile

GPU = "NVIDIA H100 80GB HBM3"
STEPS = {  # rung and format of a trace
    "device": ("device", "fp32"),
    "tf32": ("device", "tf32"),
    "amp": ("amp", "bf16"),
    "channels_last": ("channels_last", "bf16"),
    "compile": ("compile", "bf16"),
}


def step_s(name: str) -> float:
    """Return the recorded seconds of a step of 256 images."""
    rung, precision = STEPS[name]
    table = recordings.recorded("nvidia-h100")
    row = table.query(
        "rung == @rung and precision == @precision and batch_size == 256 and gpus == 1"
    )
    return row["step_s"].iloc[0]


def profile_of(name: str) -> Profile:
    """Return a profile with the recorded trace and step, as a script's would be."""
    seconds, path = step_s(name), Path(trace_path("nvidia-h100", name))
    counts = {"wait_s": 0.0, "optimizer_s": 0.0, "loops": 0, "kind": "timed"}
    iterations = [
        {"begin_s": number * seconds, "end_s": (number + 1) * seconds, **counts}
        for number in range(10)
    ]
    values = {
        "iterations": iterations,
        "trace": path.name,
        "machine": {"device": "cuda", "device_name": GPU},
        "is_compiled": False,
        "loaders": [],
        "waits": {},
        "lines": {},
        "forwards": [],
        "optimizers": [],
    }
    return Profile(values, path.parent)


@pytest.mark.parametrize(
    "name, limit, faster",
    [
        ("device", "format", "tf32"),
        ("device", "format", "amp"),
        ("tf32", "format", "amp"),
        ("amp", "layout", "channels_last"),
        ("channels_last", "memory", "compile"),
    ],
)
def test_a_bound_is_not_below_what_a_change_gained(name: str, limit: str, faster: str) -> None:
    profile = profile_of(name)
    found = {found.name: found for found in limits_of(profile, parts_of(profile), gpu_rates(GPU))}
    assert found[limit].gain >= step_s(name) / step_s(faster) > 1


def test_what_was_repaired_is_no_limit() -> None:
    profile = profile_of("channels_last")
    found = {limit.name for limit in limits_of(profile, parts_of(profile), gpu_rates(GPU))}
    assert not found & {"format", "layout", "data", "waits", "communication"}


@pytest.mark.parametrize("name", ["device", "tf32", "amp", "channels_last"])
def test_parts_add_up_to_the_step(name: str) -> None:
    parts = parts_of(profile_of(name))
    total = parts.data + parts.compute + parts.communication + parts.launch
    assert total == pytest.approx(parts.step, rel=1e-6)
    # FLOP of a ResNet-50 of 256 images: three times 4.1 G multiplications and additions each.
    assert parts.flop == pytest.approx(256 * 3 * 2 * 4.1e9, rel=0.03)


def test_the_page_as_html() -> None:
    profile = profile_of("amp")
    counts = {"batches": 1, "backwards": 1, "updates": 1, "samples": 256, "tokens": 0}
    for iteration in profile.values["iterations"]:
        iteration |= counts
    memory = {"peak": 2**34, "parameters": 2**27, "gradients": 2**27, "optimizer": 2**27}
    command = {"command": ["train.py", "--name", "<b>"], "rule": "optimizer steps", "rank": 0}
    profile.values.update(command, stages=[], lines={}, memory=memory)
    profile.values["processes"] = 1
    profile.values["machine"] |= {"torch": "2.11.0", "cores": 16}
    text = html_of(values_of([profile]), profile.trace)
    assert "&lt;b&gt;" in text and "<b>" not in text
    assert text.count("<rect") > 500 and "stream 7" in text
    assert "1 batch, 1 backward pass, 1 optimizer step;" in text
    assert "Peak memory 16 GiB: 0.125 parameters" in text
