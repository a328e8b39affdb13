"""A network as an ONNX file, which needs no Python code: in fp32, or with eight bits."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch import nn

from course.analysis import on_ranks

INPUT_NAME = "images"
CALIBRATION_BATCH = 64
MAX_IMAGES = 4096  # at once


def write_onnx(
    model: nn.Module, path: Path, images: torch.Tensor, calibration: torch.Tensor | None = None
) -> Path:
    """Write a network as ONNX, and run it once in ONNX Runtime; return the path.

    A separate process does it, so that a crash does not end a notebook's kernel.

    Args:
        images: (N, 3, px, px); the file takes any number of images of this size.
        calibration: images for 8-bit weights and activations (post-training, static). Weights have
            a scale per output channel; activations are uint8 with one scale per tensor, from the
            smallest and the largest number in calibration. Without it, the file is in fp32.

    Raises:
        RuntimeError: it failed or crashed.
    """
    count = torch.export.Dim(INPUT_NAME, min=1, max=MAX_IMAGES)
    program = torch.export.export(model, (images,), dynamic_shapes=({0: count},))
    with tempfile.TemporaryDirectory() as folder:
        exported = Path(folder) / "network.pt2"
        torch.export.save(program, exported)
        on_ranks(_write, 1, exported, path, calibration)
    return path


def _write(
    _rank: int, _ranks: int, exported: Path, path: Path, calibration: torch.Tensor | None
) -> None:
    import onnxruntime

    program = torch.export.load(exported)
    fp32 = exported.with_suffix(".onnx") if calibration is not None else path
    options = {"input_names": [INPUT_NAME], "external_data": False, "verbose": False}
    torch.onnx.export(program, f=fp32, dynamo=True, **options)
    if calibration is not None:
        _write_int8(fp32, calibration, path)
    (images,), _ = program.example_inputs
    onnxruntime.InferenceSession(path).run(None, {INPUT_NAME: images.numpy()})


def _write_int8(path: Path, calibration: torch.Tensor, out: Path) -> None:
    from onnxruntime import quantization

    class Batches(quantization.CalibrationDataReader):
        def __init__(self) -> None:
            self._batches = iter(calibration.split(CALIBRATION_BATCH))

        def get_next(self) -> dict | None:
            images = next(self._batches, None)
            return None if images is None else {INPUT_NAME: images.numpy()}

    # Signed activations are far slower on x86.
    activations = quantization.QuantType.QUInt8
    quantization.quantize_static(
        path, out, Batches(), per_channel=True, activation_type=activations
    )
