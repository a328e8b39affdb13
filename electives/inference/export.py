"""A network as a file that needs no Python code: torch.export, ONNX, and eight bits in ONNX."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pandas as pd
import torch
from torch import nn

from course.analysis import on_ranks
from electives.inference.latency import time_calls
from electives.inference.training import load_crops, top1

ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
INPUT_NAME = "images"
CALIBRATION_BATCH = 64
MAX_IMAGES = 4096  # at once
TENSORRT_RESULTS = re.compile(r"(Throughput|Latency):")  # lines of trtexec


def installed_versions() -> pd.Series:
    """Return the versions of ONNX's packages and of TensorRT; "" for a missing one."""
    names = (*ONNX_PACKAGES, "tensorrt")
    return pd.Series({name: _version(name) for name in names}, name="version")


def has_onnx() -> bool:
    """Return whether this machine can write and run ONNX."""
    return all(map(_version, ONNX_PACKAGES))


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def export_program(model: nn.Module, images: torch.Tensor) -> torch.export.ExportedProgram:
    """Export a network's operators and weights, for any number of images of this size."""
    count = torch.export.Dim(INPUT_NAME, min=1, max=MAX_IMAGES)
    return torch.export.export(model, (images,), dynamic_shapes=({0: count},))


def write_onnx(program: torch.export.ExportedProgram, path: Path) -> Path:
    """Write a network as ONNX, and run it once in ONNX Runtime; return the path.

    A separate process does it, so that a crash does not end a notebook's kernel.

    Raises:
        RuntimeError: it failed or crashed.
    """
    with tempfile.TemporaryDirectory() as folder:
        exported = Path(folder) / "network.pt2"
        torch.export.save(program, exported)
        on_ranks(_write_onnx, 1, exported, path)
    return path


def _write_onnx(_rank: int, _ranks: int, exported: Path, path: Path) -> None:
    program = torch.export.load(exported)
    options = {"input_names": [INPUT_NAME], "external_data": False, "verbose": False}
    torch.onnx.export(program, f=path, dynamo=True, **options)
    (images,), _ = program.example_inputs
    OnnxSession(path)(images)


def write_int8_onnx(path: Path, calibration: torch.Tensor, out: Path) -> Path:
    """Quantize an ONNX file to 8-bit weights and activations (post-training, static).

    Weights have a scale per output channel; activations are uint8 with one scale per tensor, from
    the smallest and the largest number in calibration. A separate process does it.
    """
    on_ranks(_write_int8, 1, path, calibration, out)
    return out


def _write_int8(_rank: int, _ranks: int, path: Path, calibration: torch.Tensor, out: Path) -> None:
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
    OnnxSession(out)(calibration[:1])


class OnnxSession:
    """ONNX Runtime with a file, on as many cores as PyTorch: images in, scores out."""

    def __init__(self, path: Path) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        self._session = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """Compute scores (N, classes) of images (N, 3, px, px), fp32."""
        (scores,) = self._session.run(None, {INPUT_NAME: images.numpy()})
        return torch.from_numpy(scores)


def time_with_tensorrt(path: Path, images: torch.Tensor) -> str:
    """Build and time an ONNX file with TensorRT's trtexec; return what it reports.

    The network computes in the file's types.
    """
    tool = shutil.which("trtexec")
    if tool is None:
        return "TensorRT is missing: its tool trtexec would build an engine from such a file."
    shape = "x".join(map(str, images.shape))
    command = [tool, f"--onnx={path}", f"--shapes={INPUT_NAME}:{shape}"]
    process = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if process.returncode:
        log = "\n".join(process.stderr.splitlines()[-5:])
        return f"trtexec ended with {process.returncode}: {log}"
    lines = [line for line in process.stdout.splitlines() if TENSORRT_RESULTS.search(line)]
    return "\n".join(lines) or process.stdout


def compare_formats(
    networks: dict[str, tuple[nn.Module | OnnxSession, Path | None]],
) -> pd.DataFrame:
    """Compare file size, latency and accuracy of networks.

    Columns: kb (of the file), p50 for 1 and 64 images ("ms, 64 at once"), top1.

    Args:
        networks: by name the network, and its file if it has one.
    """
    rows = {}
    for name, (network, path) in networks.items():
        row = {"kb": path.stat().st_size / 1e3 if path else None}
        for batch in (1, 64):
            crops, _ = load_crops("val", batch)

            @torch.inference_mode()
            def call() -> torch.Tensor:
                return network(crops)  # noqa: B023

            row[f"ms, {batch} at once"] = 1e3 * time_calls(call, crops.device)["p50_s"]
        rows[name] = row | {"top1": top1(network)}
    return pd.DataFrame.from_dict(rows, orient="index")
