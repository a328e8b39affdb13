"""A network as a file that needs no Python of ours: torch.export, ONNX, and eight bits in ONNX."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections import Counter
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pandas as pd
import torch
from torch import nn

from course.runs import isolated
from labs.lab_inference.latency import timed
from labs.lab_inference.training import images_of, top1

WANTED = ("onnx", "onnxscript", "onnxruntime")
ASKED = "images"  # the name of what goes in, in a file
AT_ONCE = 64  # images of a batch of calibration
MOST = 4096  # images at once that an exported network takes
TOLD = re.compile(r"(Throughput|Latency):")  # lines of trtexec that matter here


def installed() -> pd.Series:
    """Versions of the packages that ONNX needs here, and of TensorRT; "" where there is none."""
    return pd.Series({name: _version(name) for name in (*WANTED, "tensorrt")}, name="version")


def has_onnx() -> bool:
    """Can a network be written as ONNX, and be run from there, on this machine?"""
    return all(map(_version, WANTED))


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def exported(model: nn.Module, images: torch.Tensor) -> torch.export.ExportedProgram:
    """The network's operators with its weights, for any number of images of this size."""
    count = torch.export.Dim("images", min=1, max=MOST)
    return torch.export.export(model, (images,), dynamic_shapes=({0: count},))


def operators(program: torch.export.ExportedProgram) -> pd.Series:
    """How often each operator is called, the commonest first."""
    calls = Counter(
        node.target.overloadpacket.__name__
        for node in program.graph.nodes
        if node.op == "call_function" and hasattr(node.target, "overloadpacket")
    )
    return pd.Series(dict(calls.most_common()), name="calls")


def to_onnx(program: torch.export.ExportedProgram, path: Path) -> Path:
    """Write the network as ONNX, and say where it is. It needs onnx and onnxscript.

    A process of its own writes it, and has ONNX Runtime answer once: a crash of either ends that
    process, and not a notebook's kernel.

    Raises:
        RuntimeError: it failed, or crashed; the message says how.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "network.pt2"
        torch.export.save(program, saved)
        isolated.call(_write_onnx, saved, path)
    return path


def _write_onnx(saved: Path, path: Path) -> None:
    program = torch.export.load(saved)
    torch.onnx.export(
        program,
        f=path,
        dynamo=True,
        input_names=[ASKED],
        external_data=False,
        verbose=False,
    )
    (images,), _ = program.example_inputs
    Session(path)(images)


def to_int8_file(path: Path, calibration: torch.Tensor, out: Path) -> Path:
    """Write a network of an ONNX file with 8-bit weights and activations: post-training, static.

    Weights have a scale an output channel; activations, uint8, one a tensor, of the least and the
    largest that calibration shows. A process of its own writes it, as in `to_onnx`.
    """
    isolated.call(_write_int8, path, calibration, out)
    return out


def _write_int8(path: Path, calibration: torch.Tensor, out: Path) -> None:
    from onnxruntime import quantization

    class Batches(quantization.CalibrationDataReader):
        def __init__(self) -> None:
            self._left = iter(calibration.split(AT_ONCE))

        def get_next(self) -> dict | None:
            images = next(self._left, None)
            return None if images is None else {ASKED: images.numpy()}

    quantization.quantize_static(
        path,
        out,
        Batches(),
        per_channel=True,
        activation_type=quantization.QuantType.QUInt8,  # of x86: signed ones are slower by far
    )
    Session(out)(calibration[:1])


class Session:
    """ONNX Runtime with a file, on as many cores as PyTorch: images in, scores out."""

    def __init__(self, path: Path) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        self._session = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """Scores (N, classes) of images (N, 3, px, px), fp32."""
        (scores,) = self._session.run(None, {ASKED: images.numpy()})
        return torch.from_numpy(scores)


def tensorrt(path: Path, images: torch.Tensor) -> str:
    """What TensorRT's own tool says of a file: how it builds the network, and how long it takes.

    Without TensorRT it says so. The network computes in the file's types.
    """
    tool = shutil.which("trtexec")
    if tool is None:
        return "No TensorRT on this machine: its tool trtexec would build an engine of such a file."
    shape = "x".join(map(str, images.shape))
    command = [tool, f"--onnx={path}", f"--shapes={ASKED}:{shape}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode:
        return f"trtexec ended with {done.returncode}: " + "\n".join(done.stderr.splitlines()[-5:])
    lines = [each for each in done.stdout.splitlines() if TOLD.search(each)]
    return "\n".join(lines) or done.stdout


def compared(
    ways: dict[str, tuple[nn.Module | Session, Path | None]],
    batches: tuple[int, ...] = (1, 64),
    images: int = 2048,
    budget_s: float = 0.3,
) -> pd.DataFrame:
    """What each way takes and how often it is right: a row a way, by its name.

    Columns: kb (of its file), a p50 in ms for each batch ("ms, 64 at once"), top1.

    Args:
        ways: by name what answers, and its file if it has one.
    """
    rows = {}
    for name, (answer, path) in ways.items():
        row = {"kb": path.stat().st_size / 1e3 if path else None}
        for batch in batches:
            some, _ = images_of("val", batch)

            def call() -> torch.Tensor:
                with torch.inference_mode():
                    return answer(some)  # noqa: B023

            took = timed(call, some.device, budget_s)["p50_s"]
            row[f"ms, {batch} at once"] = 1e3 * took
        rows[name] = row | {"top1": top1(answer, images)}
    return pd.DataFrame.from_dict(rows, orient="index")
