"""What a GPU shows of the compiler beside training: one fused kernel, new shapes, inference.

    python benchmarks/compile.py FOLDER [PART...]

Writes FOLDER/PART.json for each part as soon as it is measured: tail, inference, shapes. A part
that fails says why, in its file, and the others go on.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import torch
from torch import nn

from course.topics import compilation
from course.training import models
from course.training.recorder import device_name

NETWORK, CLASSES, PX = "resnet50", 1000, 224
TAIL = (256, 256, 56, 56)  # what the first stage of ResNet-50 hands on, of 256 images
INFERRED = (1, 256)  # images at once
ROUNDS = 20
SHAPED = "resnet18"  # it is compiled eight times
SIDES = (128, 160, 192, 224)
BATCHES = (256, 100)  # the last one of an epoch has what is left


def tail(device: torch.device) -> dict[str, Any]:
    """A residual block's end in bf16, in inference: milliseconds, source, and what rounding does.

    differ: of all numbers, how many are not PyTorch's own, as compiled and with
    emulate_precision_casts.
    """
    torch.manual_seed(0)
    block = compilation.Tail(TAIL[1]).to(device).eval()
    inputs = [_nhwc(torch.randn(TAIL, device=device, dtype=torch.bfloat16)) for _ in range(2)]
    with torch.no_grad(), torch.autocast(device.type, torch.bfloat16):
        eager = block(*inputs)
        ms = {"eager": _ms(lambda: block(*inputs), device)}
        compiled = torch.compile(block)
        differ = {"compiled": _differ(compiled(*inputs), eager)}
        ms["compiled"] = _ms(lambda: compiled(*inputs), device)
        torch._dynamo.reset()
        with torch._inductor.config.patch(emulate_precision_casts=True):
            differ["emulated"] = _differ(torch.compile(block)(*inputs), eager)
        found = compilation.kernels(block, *inputs)
    kernels = [{"name": each.name, "source": each.source} for each in found]
    return {"shape": TAIL, "bytes": eager.nbytes, "ms": ms, "differ": differ, "kernels": kernels}


def inference(device: torch.device) -> dict[str, Any]:
    """Milliseconds of a batch in bf16: as it is, compiled, and exported to a file that is loaded.

    Of the last two also the seconds until the first answer.
    """
    net = models.create(NETWORK, CLASSES).to(device).eval().to(torch.bfloat16)
    net = net.to(memory_format=torch.channels_last)
    rows = [_inferred(net, count, device) for count in INFERRED]
    return {"network": NETWORK, "image_px": PX, "precision": "bf16", "rows": rows}


@torch.no_grad()
def _inferred(net: nn.Module, count: int, device: torch.device) -> dict[str, Any]:
    shape = (count, 3, PX, PX)
    images = _nhwc(torch.randn(shape, device=device, dtype=torch.bfloat16))
    torch._dynamo.reset()
    row: dict[str, Any] = {"images": count, "eager_ms": _ms(lambda: net(images), device)}
    compiled = torch.compile(net)
    row["compiled_first_s"] = _seconds(lambda: compiled(images), device)
    row["compiled_ms"] = _ms(lambda: compiled(images), device)
    row |= _exported(net, images, device)
    print(row, flush=True)
    return row


def _exported(net: nn.Module, images: torch.Tensor, device: torch.device) -> dict[str, Any]:
    """Through torch.export and AOTInductor: one file, which needs no Python class to be loaded."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/net.pt2"
        try:
            begin = time.perf_counter()
            program = torch.export.export(net, (images,))
            torch._inductor.aoti_compile_and_package(program, package_path=path)
            made_s = time.perf_counter() - begin
            loaded: list[Callable] = []

            def first() -> None:
                loaded.append(torch._inductor.aoti_load_package(path))
                loaded[0](images)

            first_s = _seconds(first, device)
            ms = _ms(lambda: loaded[0](images), device)
        except Exception as error:  # without a compiler for the host, say
            return {"exported_error": _told(error)}
        size = Path(path).stat().st_size
    return {
        "exported_s": made_s,
        "exported_first_s": first_s,
        "exported_ms": ms,
        "exported_bytes": size,
    }


def shapes(device: torch.device) -> dict[str, Any]:
    """Training steps with new shapes: seconds of the first step with each, milliseconds then.

    Larger and larger images, as of progressive resizing; and an epoch's last, smaller batch.
    """
    growing = [(64, side) for side in SIDES]
    ending = [(count, SIDES[0]) for count in BATCHES]
    rows: list[dict[str, Any]] = []
    for name, asked, dynamic in (
        ("growing", growing, None),
        ("ending", ending, None),
        ("growing", growing, False),
    ):
        torch._dynamo.reset()
        step = _training(device, dynamic)
        for count, side in asked:
            row = {"course": name, "dynamic": dynamic, "images": count, "image_px": side}
            rows.append(row | _first_and_then(step, count, side, device))
            print(rows[-1], flush=True)
    return {"network": SHAPED, "precision": "bf16", "rows": rows}


def _first_and_then(step: Callable, count: int, side: int, device: torch.device) -> dict[str, Any]:
    images = _nhwc(torch.randn(count, 3, side, side, device=device))
    labels = torch.zeros(count, dtype=torch.long, device=device)
    stats = torch._dynamo.utils.counters["stats"]
    before = stats["unique_graphs"]
    first_s = _seconds(lambda: step(images, labels), device)
    graphs = stats["unique_graphs"] - before
    return {"graphs": graphs, "first_s": first_s, "ms": _ms(lambda: step(images, labels), device)}


def _training(device: torch.device, dynamic: bool | None) -> Callable:
    """A function that takes a training step, its network compiled."""
    torch.manual_seed(0)
    net = models.create(SHAPED, CLASSES).to(device).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9, fused=True)
    compiled = torch.compile(net, dynamic=dynamic)

    def step(images: torch.Tensor, labels: torch.Tensor) -> None:
        with torch.autocast(device.type, torch.bfloat16):
            loss = nn.functional.cross_entropy(compiled(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def _nhwc(images: torch.Tensor) -> torch.Tensor:
    return images.to(memory_format=torch.channels_last)


def _differ(found: torch.Tensor, due: torch.Tensor) -> float:
    """Which share of all numbers is another one?"""
    return float((found != due).float().mean())


def _seconds(work: Callable[[], Any], device: torch.device) -> float:
    begin = time.perf_counter()
    work()
    _wait(device)
    return time.perf_counter() - begin


def _ms(work: Callable[[], Any], device: torch.device) -> float:
    """The median of ROUNDS calls, each waited for, after three that are not counted."""
    for _ in range(3):
        work()
    _wait(device)
    found = sorted(_seconds(work, device) for _ in range(ROUNDS))
    return 1e3 * found[ROUNDS // 2]


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:400]


PARTS = {"tail": tail, "inference": inference, "shapes": shapes}


def main() -> None:
    folder, *names = sys.argv[1:] or [""]
    if not folder or {*names} - {*PARTS}:
        raise SystemExit(f"python benchmarks/compile.py FOLDER [{' '.join(PARTS)}]")
    Path(folder).mkdir(parents=True, exist_ok=True)
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    machine = device_name(device) if device.type != "cpu" else "a processor"
    for name in names or PARTS:
        told = {"machine": machine, "date": str(date.today()), "torch": torch.__version__}
        told |= {"command": f"python benchmarks/compile.py FOLDER {name}"}
        try:
            told |= PARTS[name](device)
        except Exception as error:
            traceback.print_exc()
            told["error"] = _told(error)
        (Path(folder) / f"{name}.json").write_text(json.dumps(told, indent=1) + "\n")
        print(f"{name}: written", flush=True)


if __name__ == "__main__":
    main()
