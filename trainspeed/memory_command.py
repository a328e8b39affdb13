"""The command `trainspeed memory`: which batches fit into a GPU's memory."""

from __future__ import annotations

import argparse
import inspect
import json
import pkgutil
import re
import sys
from collections.abc import Callable
from dataclasses import asdict, fields
from functools import partial
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainspeed.text import digits

if TYPE_CHECKING:
    import torch

    from trainspeed.memory import Prediction

FREE = 0.1  # of the card: CUDA itself, workspaces, and blocks that do not fit the next request
UNITS = {"GIB": 2**30, "GB": 10**9, "MIB": 2**20, "MB": 10**6, "G": 2**30, "": 2**30}
USAGE = "trainspeed memory MODULE:FUNCTION --batch N [N …] [options]"


def add_memory(commands: argparse._SubParsersAction) -> None:
    """Add `trainspeed memory`."""
    help_ = "predict, without a GPU, the memory of a training step, and the largest batch"
    parser = commands.add_parser(
        "memory",
        help=help_,
        usage=USAGE,
        description=f"{help_[0].upper()}{help_[1:]}. FUNCTION returns a model; or, for an argument "
        f"named batch, (model, inputs), or (model, inputs, loss): loss(output) is a number.",
    )
    parser.add_argument("make", metavar="MODULE:FUNCTION", help="also path/file.py:FUNCTION")
    parser.add_argument("--batch", type=int, nargs="+", required=True, help="sizes to predict")
    parser.add_argument("--input", metavar="3x224x224", help="the shape of a sample")
    parser.add_argument("--tokens", type=int, metavar="N", help="a sample is N numbers of words")
    parser.add_argument("--gpu", metavar="40GiB", help="the memory of the card")
    optimizers = ("adamw", "adam", "sgd")
    parser.add_argument("--optimizer", choices=optimizers, default=optimizers[0])
    choices = ("fp32", "bf16", "fp16")
    parser.add_argument("--precision", choices=choices, default=choices[0], help="of autocast")
    parser.add_argument("--loss", choices=("mean", "cross-entropy"), help="of the output")
    parser.add_argument("--checkpointing", action="store_true", help="of the repeated blocks")
    parser.add_argument("--channels-last", action="store_true", help="the layout of images")
    parser.add_argument("--micro-batches", type=int, default=1, metavar="N", help="per update")
    parser.add_argument("--json", action="store_true", help="print values instead of the table")
    parser.set_defaults(run=run_memory)


def run_memory(options: argparse.Namespace, command: list[str]) -> int:
    """Predict the peak of each batch, and the largest batch that fits; print both."""
    from trainspeed.memory import largest_batch, predict_memory

    if command:
        raise ValueError(f"usage: {USAGE}, without a command")
    if min(options.batch) < 1:
        raise ValueError(f"--batch {min(options.batch)}: expected at least 1")
    limit = parse_gib(options.gpu) if options.gpu else None
    model, inputs, loss = _task(options)
    settings = loss | _settings(options)
    rows = {batch: predict_memory(model, inputs(batch), **settings) for batch in options.batch}
    largest = largest_batch(inputs, model, (1 - FREE) * limit, **settings) if limit else None
    if options.json:
        values = {
            "batches": [{"batch": batch, **asdict(row)} for batch, row in rows.items()],
            "gpu_gib": limit,
            "largest_batch": largest,
        }
        print(json.dumps(values, indent=1))
    else:
        print(table(rows, limit))
        if limit:
            print(_largest_words(largest, limit))
    return 0


def _task(
    options: argparse.Namespace,
) -> tuple[torch.nn.Module, Callable[[int], Any], dict[str, Any]]:
    """Return the model, its inputs for a batch, and the loss."""
    from trainspeed.memory import PredictionError, create, explained

    function = find(options.make)
    takes_batch = "batch" in inspect.signature(function).parameters
    sample = [name for name in ("input", "tokens") if getattr(options, name) is not None]
    with explained():
        made = create(partial(function, **({"batch": options.batch[0]} if takes_batch else {})))
    model, *rest = made if isinstance(made, tuple) else (made,)
    if takes_batch and 1 <= len(rest) <= 2:
        if sample:
            raise PredictionError(f"--{sample[0]}: {options.make} returns the inputs itself")
        loss = {"loss": rest[1]} if rest[1:] else _loss(options)
        return model, lambda batch: create(partial(function, batch=batch))[1], loss
    if rest:
        raise PredictionError(
            f"{options.make} returns {len(rest) + 1} values: expected a model; or (model, inputs) "
            f"or (model, inputs, loss), of a function with an argument `batch`"
        )
    if len(sample) != 1:
        raise PredictionError(
            f"{options.make} returns a model, and no inputs: add either --input 3x224x224 or "
            f"--tokens 1024"
        )
    return model, _inputs(options), _loss(options)


def _inputs(options: argparse.Namespace) -> Callable[[int], torch.Tensor]:
    import torch

    if options.tokens is not None:
        if options.tokens < 1:
            raise ValueError(f"--tokens {options.tokens}: expected at least 1")
        return lambda batch: torch.zeros(batch, options.tokens, dtype=torch.long, device="meta")
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", options.input):
        raise ValueError(f"--input {options.input}: expected sizes like 3x224x224")
    shape = [int(size) for size in options.input.split("x")]
    return lambda batch: torch.empty(batch, *shape, device="meta")


def _loss(options: argparse.Namespace) -> dict[str, Any]:
    """Return the loss: for tokens cross-entropy by default, which needs the most memory."""
    name = options.loss or ("cross-entropy" if options.tokens is not None else "mean")
    return {"loss": _cross_entropy} if name == "cross-entropy" else {}


def _cross_entropy(output: Any) -> torch.Tensor:
    """Compute the loss of scores, whose last dimension is the classes."""
    import torch

    from trainspeed._compat import tensors_in
    from trainspeed.memory import PredictionError

    scores = next((t for t in tensors_in(output) if t.is_floating_point() and t.dim() > 1), None)
    if scores is None:
        raise PredictionError("--loss cross-entropy: the output has no scores; add --loss mean")
    scores = scores.flatten(0, -2)
    return torch.nn.functional.cross_entropy(scores, torch.zeros(len(scores), dtype=torch.long))


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    import torch

    return {
        "optimizer": options.optimizer,
        "autocast": {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.half}[options.precision],
        "checkpointing": "blocks" if options.checkpointing else None,
        "channels_last": options.channels_last,
        "micro_batches": options.micro_batches,
    }


def find(name: str) -> Callable[..., Any]:
    """Return the function `module:function` or `path/file.py:function`.

    Raises:
        ValueError: there is none.
    """
    where, colon, function = name.rpartition(":")
    if not colon or not where or not function:
        raise ValueError(f"{name}: expected module:function, or path/file.py:function")
    path = Path(where)
    try:
        if path.suffix == ".py":
            sys.path.insert(0, str(path.resolve().parent))
            spec = spec_from_file_location(path.stem, path)
            module = module_from_spec(spec)
            sys.modules.setdefault(path.stem, module)  # dataclasses look there
            spec.loader.exec_module(module)
        else:
            if find_spec(where.partition(".")[0]) is None:  # others may write here: installed first
                sys.path.append(str(Path.cwd()))
            module = pkgutil.resolve_name(where)
    except Exception as error:  # whatever a user's module raises
        raise ValueError(f"{where} cannot be imported: {type(error).__name__}: {error}") from error
    maker = getattr(module, function, None)
    if not callable(maker):
        raise ValueError(f"{name}: {where} has no function {function}")
    return maker


def parse_gib(text: str) -> float:
    """Return GiB for a size such as 40GiB, 80GB or 24.

    Raises:
        ValueError: not a size.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([a-z]*)", text.strip(), re.IGNORECASE)
    if not match or match[2].upper() not in UNITS or not float(match[1]):
        raise ValueError(f"--gpu {text}: expected a size such as 40GiB or 80GB")
    return float(match[1]) * UNITS[match[2].upper()] / 2**30


def table(rows: dict[int, Prediction], limit_gib: float | None) -> str:
    """Return a line for each batch, in GiB."""
    names = [field.name for field in fields(next(iter(rows.values())))]
    lines = [["batch", *(name.removesuffix("_gib") for name in names)]]
    for batch, row in rows.items():
        lines.append([f"{batch:,}", *(digits(getattr(row, name)) for name in names)])
    if limit_gib:
        lines[0].append("fits?")
        for line, row in zip(lines[1:], rows.values()):
            spare = limit_gib - row.peak_gib
            line.append("no" if spare < 0 else "yes" if spare >= FREE * limit_gib else "barely")
    widths = [max(map(len, column)) for column in zip(*lines)]
    text = ["  ".join(map(str.rjust, line, widths)) for line in lines]
    return "\n".join(["Predicted peak, and its parts at that moment, in GiB", *text])


def _largest_words(largest: int, limit_gib: float) -> str:
    room = f"{digits((1 - FREE) * limit_gib)} of {digits(limit_gib)} GiB"
    free = "The rest is for CUDA, and for what the allocator cannot use."
    if not largest:
        return f"No batch fits into {room}: try --checkpointing, or --precision bf16. {free}"
    return f"Largest batch that fits into {room}: {largest:,}. {free}"
