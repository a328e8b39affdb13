"""The time of one convolution in both memory layouts, over its channels."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import pandas as pd
import torch

from course.runs import recordings
from course.training import Recorder
from trainspeed import timing

LAYOUTS = {"NCHW": torch.contiguous_format, "NHWC": torch.channels_last}
IMAGE_PX = {"cpu": 28, "cuda": 56}
IMAGES = {"cpu": 4, "cuda": 256}  # tens of ms on two cores; about one on a large GPU
LONGEST_S = 6.0  # after this, no new round begins
FEWEST_ROUNDS, MOST_ROUNDS = 3, 30
RECORDED_NAMES = {"tf32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def convolution_times(
    device: torch.device, channels: Iterable[int] = range(60, 69), precision: str = "fp32"
) -> pd.DataFrame:
    """Time a 3×3 convolution, forward and backward, in both layouts over channel counts.

    Backward computes the gradients of input and weights; input and output have the same number of
    channels. Each round times every case, so that a disturbance of a second affects all cases.
    About seven seconds on a CPU, with one thread.

    Columns: channels, layout ("NCHW" or "NHWC"), ms, ms_q1, ms_q3, tflop_per_s (of the median),
    precision, passes ("forward" or "forward and backward"), batch_size, image_px, machine.

    Raises:
        ValueError: no channels, or a precision that the device does not have.
    """
    cases = [(count, layout) for count in channels for layout in LAYOUTS]
    if not cases or min(cases)[0] < 1:
        raise ValueError(f"channels={[count for count, _ in cases]}: give counts of 1 or more")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # threads that wait for each other are disturbed by other programs
    try:
        with timing.number_format(device, precision) as dtype:
            times = _time_in_rounds(device, dtype, cases)
    finally:
        torch.set_num_threads(threads)
    px, batch = IMAGE_PX[device.type], IMAGES[device.type]
    rows = []
    for (count, layout), case_times in times.items():
        q1, median, q3 = (1e3 * value for value in timing.quartiles(case_times))
        flop = 3 * 2 * 9 * count**2 * px**2 * batch  # backward is twice as much as forward
        speed = flop / median / 1e9
        rows.append((count, layout, median, q1, q3, speed))
    names = ["channels", "layout", "ms", "ms_q1", "ms_q3", "tflop_per_s"]
    machine = Recorder(None).describe(device)["machine"]
    return pd.DataFrame(rows, columns=names).assign(
        precision=precision,
        passes="forward and backward",
        batch_size=batch,
        image_px=px,
        machine=f"{machine}, one thread" if device.type == "cpu" else machine,
    )


def recorded_convolution(machine: str, precision: str = "bf16") -> pd.DataFrame:
    """Return the table of `convolution_times` as recorded: forward, without quartiles (NaN).

    The recorded "float32" is tf32 here: PyTorch's convolutions use TF32 by default, and these are
    several times as fast as the machine's ceiling in fp32.

    Args:
        precision: tf32, bf16 or fp16.

    Raises:
        ValueError: nothing is recorded for this machine or precision.
    """
    saved = recordings.load(machine)
    rows = [
        row
        for row in saved.get("convolution", {}).get("rows", [])
        if row["precision"] == RECORDED_NAMES.get(precision)
    ]
    if not rows:
        raise ValueError(
            f"no convolution in {precision!r} is recorded for {machine!r}: nvidia-h100 has "
            f"{', '.join(RECORDED_NAMES)}"
        )
    table = pd.DataFrame(rows)
    return table[["channels", "layout"]].assign(
        ms=table["median_s"] * 1e3,
        ms_q1=float("nan"),
        ms_q3=float("nan"),
        tflop_per_s=table["tflop_per_s"],
        precision=precision,
        passes="forward",
        batch_size=64,
        image_px=56,
        machine=f"{saved['machine']} ({recordings.origin(saved)})",
    )


def _time_in_rounds(
    device: torch.device, dtype: torch.dtype, cases: list[tuple[int, str]]
) -> dict[tuple[int, str], list[float]]:
    """Return the seconds of each case, without the first round, which chooses algorithms."""
    times: dict[tuple[int, str], list[float]] = {case: [] for case in cases}
    begin = time.perf_counter()
    for number in range(1 + MOST_ROUNDS):
        if number > FEWEST_ROUNDS and time.perf_counter() - begin > LONGEST_S:
            break
        for case in cases:
            times[case].append(timing.seconds(_convolution(device, dtype, *case), device))
    return {case: case_times[1:] for case, case_times in times.items()}


def _convolution(
    device: torch.device, dtype: torch.dtype, channels: int, layout: str
) -> Callable[[], Any]:
    """Create the tensors, and return a call that runs the convolution forward and backward."""
    px, batch = IMAGE_PX[device.type], IMAGES[device.type]
    images = torch.randn(batch, channels, px, px, device=device, dtype=dtype)
    weights = torch.randn(channels, channels, 3, 3, device=device, dtype=dtype)
    images, weights, gradient = (
        tensor.to(memory_format=LAYOUTS[layout])
        for tensor in (images, weights, torch.randn_like(images))
    )
    inputs = images.requires_grad_(), weights.requires_grad_()

    def forward_backward() -> None:
        outputs = torch.nn.functional.conv2d(*inputs, padding=1)
        torch.autograd.grad(outputs, inputs, gradient)

    return forward_backward
