"""One convolution in both memory layouts: what channels_last and multiples of 8 are worth."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import pandas as pd
import torch

from course.analysis.roofline.timing import number_format, quartiles, seconds
from course.runs.recordings import load, origin
from course.training.recorder import Recorder

LAYOUTS = {"NCHW": torch.contiguous_format, "NHWC": torch.channels_last}
IMAGE_PX = {"cpu": 28, "cuda": 56}
IMAGES = {"cpu": 4, "cuda": 256}  # tens of ms on two cores; about one on a large GPU
SOON_S = 6.0  # no new round over all cases after so long
LEAST_ROUNDS, MOST_ROUNDS = 3, 30
NAMES = {"float32": "tf32", "bfloat16": "bf16", "float16": "fp16"}  # see `recorded_convolution`


def convolution_times(
    device: torch.device, channels: Iterable[int] = range(60, 69), precision: str = "fp32"
) -> pd.DataFrame:
    """One 3×3 convolution, forward and backward, timed in both layouts over channel counts.

    Backward computes the gradients of input and weights. As many channels go in as come out.
    Cases are timed in rounds, and not one after the other: what disturbs the machine for a second
    then disturbs all of them. About seven seconds on a CPU, of which one thread is used.

    Columns: channels, layout ("NCHW" or "NHWC"), ms, ms_q1, ms_q3, tflop_per_s (of the median),
    precision, passes ("forward" or "forward and backward"), batch_size, image_px, machine.

    Raises:
        ValueError: no channels, or a precision that the device does not have.
    """
    cases = [(count, layout) for count in channels for layout in LAYOUTS]
    if not cases or min(cases)[0] < 1:
        raise ValueError(f"channels={[count for count, _ in cases]}: give counts of 1 or more")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # threads that wait for each other feel every other program
    try:
        with number_format(device, precision) as dtype:
            times = _in_rounds(device, dtype, cases)
    finally:
        torch.set_num_threads(threads)
    machine = Recorder(None).describe(device)["machine"]
    if device.type == "cpu":
        machine += ", one thread"
    measured_with = {
        "precision": precision,
        "passes": "forward and backward",
        "batch_size": IMAGES[device.type],
        "image_px": IMAGE_PX[device.type],
        "machine": machine,
    }
    rows = [_speed(device, *case, measured) for case, measured in times.items()]
    return pd.DataFrame([row | measured_with for row in rows])


def _speed(
    device: torch.device, channels: int, layout: str, measured: list[float]
) -> dict[str, Any]:
    px, batch = IMAGE_PX[device.type], IMAGES[device.type]
    q1, median, q3 = quartiles(measured)
    flop = 3 * 2 * 9 * channels**2 * px**2 * batch  # forward once, backward twice as much
    return {
        "channels": channels,
        "layout": layout,
        "ms": median * 1e3,
        "ms_q1": q1 * 1e3,
        "ms_q3": q3 * 1e3,
        "tflop_per_s": flop / median / 1e12,
    }


def recorded_convolution(machine: str, precision: str = "bf16") -> pd.DataFrame:
    """The same table as it was recorded on another machine; `precision` is one of tf32, bf16, fp16.

    What was recorded is the forward pass of 64 images of 56 pixels, without quartiles (NaN). Its
    "float32" is called tf32 here: PyTorch's convolutions round to TF32 unless told otherwise, and
    the speeds, several times the machine's own fp32 ceiling, show that these did.

    Raises:
        ValueError: nothing was recorded for that machine or precision.
    """
    saved = load(machine)
    rows = [
        {
            "channels": row["channels"],
            "layout": row["layout"],
            "ms": row["median_s"] * 1e3,
            "ms_q1": float("nan"),
            "ms_q3": float("nan"),
            "tflop_per_s": row["tflop_per_s"],
            "precision": precision,
            "passes": "forward",
            "batch_size": 64,
            "image_px": 56,
            "machine": f"{saved['machine']} ({origin(saved)})",
        }
        for row in saved.get("convolution", {}).get("rows", [])
        if NAMES[row["precision"]] == precision
    ]
    if not rows:
        raise ValueError(
            f"no convolution in {precision!r} is recorded for {machine!r}: nvidia-h100 has "
            f"{', '.join(NAMES.values())}"
        )
    return pd.DataFrame(rows)


def _in_rounds(
    device: torch.device, dtype: torch.dtype, cases: list[tuple[int, str]]
) -> dict[tuple[int, str], list[float]]:
    """Seconds of each case, by case; a first round, which chooses algorithms, is left out."""
    times: dict[tuple[int, str], list[float]] = {case: [] for case in cases}
    begin = time.perf_counter()
    for done in range(1 + MOST_ROUNDS):
        if done > LEAST_ROUNDS and time.perf_counter() - begin > SOON_S:
            break
        for case in cases:
            times[case].append(seconds(_convolution(device, dtype, *case), device))
    return {case: measured[1:] for case, measured in times.items()}


def _convolution(
    device: torch.device, dtype: torch.dtype, channels: int, layout: str
) -> Callable[[], Any]:
    """A call that runs the convolution forward and backward, with its tensors made beforehand."""
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
