"""List the kernels of a training step: the least time that each needs, and the measured time.

    python fast_resnet/benchmarks/kernels.py                        # anywhere: bytes and FLOPs
    python fast_resnet/benchmarks/kernels.py --out kernels.jsonl    # on a GPU: measured times, too

Bytes are those that a kernel must move: each tensor that it reads or writes, once. Without a GPU,
the list has what `convert` replaces; on a GPU also loss, scaler and optimizer. A row has the calls
per step, MB, GFLOP, least_ms (MB over the bandwidth or GFLOP over the peak, whichever is larger),
the measured ms, and the shares of bandwidth and peak that it reaches. Times are those of eager
steps, which launch the same kernels as CUDA graphs. What belongs to no listed operator has a row
without bytes, so the ms add up to the time in which the GPU was busy.
"""

from __future__ import annotations

import argparse
import inspect
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import measure
import torch
import torchvision
from torch.utils.flop_counter import flop_registry

from fast_resnet import __version__, _compat, products, rows
from fast_resnet.network import Segments
from fast_resnet.structure import HEAD

BANDWIDTH, PEAK = 4.3e12, 790e12  # bytes/s and FLOP/s in 16 bits, measured on an H200
STEPS = 10
TO_INPUT = "convolution_backward to the input"
# Operators that move nothing, and how often others move each tensor: some read what they write, and
# one reads a quarter of its input.
FREE = ("empty", "empty_like", "empty_strided", "new_empty", "detach", "_unsafe_view")
TIMES = {"_fused_sgd_": 5 / 3, "_foreach_add_": 2, "add_": 1.5, "div_": 2, "subsample_kernel": 0.4}


class Record(_compat.TorchDispatchMode):
    """While active, counts calls, bytes and FLOPs by the name of an operator or a Triton kernel."""

    def __init__(self, launches: bool = True) -> None:
        super().__init__()
        self.calls, self.bytes, self.flops = Counter(), Counter(), Counter()
        self._launches, self._patches = launches, ExitStack()

    def add(self, name: str, tensors: Iterable[Any], flops: float = 0) -> None:
        """Count a call that moves each of these tensors once."""
        tensors = [value for value in tensors if torch.is_tensor(value)]
        sizes = {id(tensor): tensor.numel() * tensor.element_size() for tensor in tensors}
        if not sizes:  # a function of types or sizes
            return
        self.calls[name] += 1
        self.bytes[name] += int(TIMES.get(name, 1) * sum(sizes.values()))
        self.flops[name] += flops

    def __torch_dispatch__(self, operator, types, arguments=(), keywords=None):
        keywords, packet = keywords or {}, operator.overloadpacket
        name, result = packet.__name__, operator(*arguments, **keywords)
        if name.startswith("convolution") and not self._launches:  # as on a GPU
            result = as_channels_last(result)
        if operator.is_view or name in FREE:
            return result
        count = flop_registry.get(packet)
        flops = count(*arguments, **keywords, out_val=result) if count else 0
        if name == "convolution_backward":  # two kernels
            dy, x, w, (dx, dw, _) = *arguments[:3], result
            both = [(name, (dy, x, dw)), (TO_INPUT, (dy, w, dx))]
            for part, tensors in both[: 1 + (dx is not None)]:
                self.add(part, tensors, flops / (1 + (dx is not None)))
        else:
            shapes = [tuple(value.shape) for value in arguments if torch.is_tensor(value)]
            self.add(label(name, shapes), flat([arguments, keywords, result]), flops)
        return result

    def _launch(self, original: Callable) -> Callable:
        def launch(kernel, grid, *arguments, **options):
            named = dict(zip(inspect.signature(kernel.fn).parameters, arguments))
            # A descriptor has its tensor as base.
            tensors = [getattr(value, "base", value) for value in arguments]
            self.add(kernel.__name__, tensors, triton_flops(kernel.__name__, named))
            if self._launches:
                original(kernel, grid, *arguments, **options)

        return launch

    def __enter__(self):
        for module in (rows, products):
            self._patches.enter_context(
                mock.patch.object(module, "launch", self._launch(module.launch))
            )
        return super().__enter__()

    def __exit__(self, *error):
        self._patches.close()
        return super().__exit__(*error)

    def table(self, seconds: dict[str, float] | None = None) -> list[dict]:
        """Return a row per kernel, the longest first; `seconds` are measured, by name."""
        seconds = dict(seconds or {})
        result = []
        for name in {**self.calls, **seconds}:
            moved, flops, ms = self.bytes[name], self.flops[name], 1e3 * seconds.get(name, 0)
            row = {"kernel": name, "calls": self.calls[name], "mb": moved / 1e6}
            row |= {"gflop": flops / 1e9, "least_ms": 1e3 * max(moved / BANDWIDTH, flops / PEAK)}
            if seconds:
                row["ms"] = ms
            if ms:
                row |= {"bandwidth": moved / BANDWIDTH / ms * 1e3, "peak": flops / PEAK / ms * 1e3}
            result.append(row)
        result.sort(key=lambda row: -row.get("ms", row["least_ms"]))
        numbers = ["calls", "mb", "gflop", "least_ms", *["ms"] * bool(seconds)]
        total = {name: sum(row[name] for row in result) for name in numbers}
        return [*result, {"kernel": "all"} | total]


def label(operator: str, shapes: list) -> str:
    """Return a name for an operator's row: products that sum over pixels have their own.

    Every layer has a multiple of 49 pixels, from images of 224, and no number of channels is one.
    """
    return "mm over pixels" if operator == "mm" and shapes[0][1] % 49 == 0 else operator


def as_channels_last(result: Any) -> Any:
    """Return a convolution's result, or its gradients, in the layout that cuDNN gives them."""
    if isinstance(result, tuple):
        return (*map(as_channels_last, result),)
    images = torch.is_tensor(result) and result.dim() == 4
    return result.to(memory_format=torch.channels_last) if images else result


def flat(values: Any) -> Iterator[Any]:
    """Yield the leaves of nested lists, tuples and dictionaries."""
    if isinstance(values, dict):
        values = [*values.values()]
    for value in values if isinstance(values, (list, tuple)) else ():
        yield from flat(value) if isinstance(value, (list, tuple, dict)) else (value,)


def triton_flops(name: str, arguments: dict[str, Any]) -> int:
    """Return a Triton kernel's FLOPs in matrix products."""
    if name == "gram_product_kernel":  # two products in TF32
        return 4 * arguments["N"] * arguments["K"] ** 2
    if name not in ("conv3_kernel", "dgrad1_kernel", "dz_kernel"):
        return 0
    M, N, K = (arguments[size] for size in "MNK")
    return 2 * M * K * (N + K * (name == "dz_kernel"))


def of_shapes(network: str, batch: int, pixels: int = 224) -> Record:
    """Record the passes of a network without computing them: forward, backward, gradients."""
    with torch.device("meta"):
        model = getattr(torchvision.models, network)().to(memory_format=torch.channels_last)
        images = torch.empty(batch, 4, pixels, pixels, dtype=torch.float16)
        images = images.to(memory_format=torch.channels_last)
    segments = Segments(model, torch.float16)
    with Record(launches=False) as record, torch.no_grad():
        segments.rehearse(images)
        segments.state.gradients(segments.modules_in(range(HEAD + 1)))
    return record


def device_seconds(events: Iterable[Any], names: Iterable[str], steps: int) -> dict[str, float]:
    """Return seconds per step on the device by operator or kernel, from a profiler's events.

    A kernel that an operator in `names` has launched counts for the outermost such operator, and
    any other one for itself.
    """
    names, total, launched = set(names), Counter(), []
    for event in events:
        if event.device_type != torch.autograd.DeviceType.CPU:
            if event.is_user_annotation:  # spans kernels that have events of their own
                continue
            total[event.name] += event.time_range.elapsed_us()
            continue
        outermost, above = None, event
        while above is not None:
            name = label(above.name.removeprefix("aten::"), above.input_shapes)
            outermost, above = name if name in names else outermost, above.cpu_parent
        if outermost:
            launched += [(outermost, kernel) for kernel in event.kernels]
    for name, kernel in launched:
        to_input = name == "convolution_backward" and "dgrad" in kernel.name
        total[TO_INPUT if to_input else name] += kernel.duration
        total[kernel.name] -= kernel.duration
    return {name: us / 1e6 / steps for name, us in total.items() if us > 0.5}


def profiled(step: Callable[[], Any]) -> list[dict]:
    """Return the table of a step on a GPU, with measured times."""
    with Record() as record:
        step()
    with torch.profiler.profile(record_shapes=True) as profile:
        for _ in range(STEPS):
            step()
        torch.cuda.synchronize()
    return record.table(device_seconds(profile.events(), record.calls, STEPS))


def show(table: list[dict]) -> None:
    """Print the rows as a Markdown table."""
    for name in table[0]:
        print(f"| {name} ", end="")
    print("|\n" + "|---" * len(table[0]) + "|")
    for row in table:
        cells = [row.get(name, 0) for name in table[0]]
        texts = [f"{cell:,.2f}" if isinstance(cell, float) else str(cell) for cell in cells]
        print(f"| {' | '.join(texts)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", choices=measure.NETWORKS, default="resnet50")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--out", type=Path, help="also append rows to this file")
    arguments = parser.parse_args()
    if torch.cuda.is_available():
        torch.backends.cudnn.benchmark = True
        with mock.patch("fast_resnet.model.EAGER_STEPS", 10**9):  # graphs would hide operators
            step = measure.make_step("fast", arguments.network, arguments.batch, torch.float16)
            for _ in range(measure.FIRST_STEPS):
                step()
            table = profiled(step)
        machine = torch.cuda.get_device_name()
    else:
        table, machine = of_shapes(arguments.network, arguments.batch).table(), "none"
    show(table)
    if arguments.out:
        setting = {"network": arguments.network, "batch": arguments.batch, "dtype": "fp16"}
        setting |= {"gpu": machine, "torch": torch.__version__, "fast_resnet": __version__}
        with arguments.out.open("a") as file:
            file.writelines(json.dumps(setting | row) + "\n" for row in table)


if __name__ == "__main__":
    main()
