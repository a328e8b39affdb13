"""Predict a training step's memory on fake tensors: shapes, types and layouts without content.

PyTorch's FakeTensorMode runs every operator on tensors that have no content, so a step at batch
1024 takes a second on a laptop, and no memory. It shows everything that does not depend on the
numbers: the bytes that are kept, the bytes that are moved, and the operations.
"""

from __future__ import annotations

import inspect
import logging
import sys
import traceback
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
from torch.utils.hooks import RemovableHandle

from trainspeed._compat import (
    NEEDS_NUMBERS,
    FakeTensorMode,
    memory_tracker,
    tensors_in,
    tree_map_only,
)
from trainspeed.fake_gpu import fake_tensors
from trainspeed.lines import is_own
from trainspeed.resources import GIB

MEASURE = (
    "measure the peaks of two small batches, which `trainspeed profile` prints: those of larger "
    "batches are on the line through both"
)
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": torch.optim.AdamW,
    "adam": torch.optim.Adam,
    "sgd": partial(torch.optim.SGD, momentum=0.9),
}
WRAPPERS = {  # by class, with what to do
    "ScriptModule": "pass the module from which it was compiled",
    "DistributedDataParallel": (
        "pass its `.module`; each rank also has DDP's buckets, as large as all gradients"
    ),
    "FullyShardedDataParallel": "pass the module before sharding, which is for a single GPU",
    "FSDPModule": "pass the module before sharding, which is for a single GPU",
}
LARGEST = 2**24  # samples in a batch


class PredictionError(ValueError):
    """Nothing can be predicted; the message has the reason and the next best step."""


@dataclass(frozen=True)
class Prediction:
    """The peak memory of training on a GPU, and its parts at that moment, in GiB.

    The peak is mostly at the beginning of backward: all activations exist, and only the gradients
    of the last layer. Then gradients grow, and activations are freed. A large model with a small
    batch has its peak in the optimizer.
    """

    peak_gib: float
    weights_gib: float  # with buffers, such as BatchNorm's running statistics
    gradients_gib: float
    optimizer_gib: float  # SGD has one momentum per weight, Adam two
    activations_gib: float  # with autocast's half-precision copies of the weights
    other_gib: float  # the batch, and the workspace of one layer or of the optimizer


class FakeStep:
    """A training step on fake tensors, to be created and used inside `fake_tensors()`.

    Attributes:
        model: the fake copy.
        optimizer: of its parameters.
        inputs: of the model.
        targets: of the loss.
        others: more tensors that exist during the step.
        micro_batch: the samples of a pass.
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: Any,
        *,
        targets: Any = (),
        loss: Callable[..., torch.Tensor] | None = None,
        optimizer: str | Callable[[Any], torch.optim.Optimizer] = "adamw",
        autocast: torch.dtype | None = None,
        checkpointing: str | Iterable[nn.Module | str] | None = None,
        channels_last: bool = False,
        offload: bool = False,
        micro_batches: int = 1,
    ) -> None:
        """See `predict_memory`."""
        if autocast not in (None, torch.bfloat16, torch.float16):
            raise PredictionError(
                f"autocast={autocast!r}: expected torch.bfloat16, torch.float16 or None"
            )
        layout = torch.channels_last if channels_last else None
        self.model = _fake_copy(model, layout)
        if not self.model.training:
            self.model.train()
        if checkpointing is not None:
            checkpoint_modules(_copies(checkpointing, model, self.model))
        self.inputs, self.targets = _fake_tensors_of(inputs, layout), _fake_tensors_of(targets)
        self.batch_size = _batch_size(inputs)
        if not 1 <= micro_batches <= self.batch_size:
            raise PredictionError(
                f"micro_batches={micro_batches}: expected from 1 to the batch, {self.batch_size}"
            )
        self.micro_batch = -(-self.batch_size // micro_batches)
        self.others: list[torch.Tensor] = []
        self.optimizer = _optimizer(optimizer, self.model)
        self.loss = loss or _mean
        self.autocast, self.offload = autocast, offload
        self.between_passes: Callable[[], None] = lambda: None

    @property
    def tensors(self) -> list[torch.Tensor]:
        """What exists besides the model and the optimizer."""
        return tensors_in([self.inputs, self.targets, self.others])

    def passes(self) -> list[slice]:
        """Return the samples of each pass."""
        begins = range(0, self.batch_size, self.micro_batch)
        return [slice(at, min(at + self.micro_batch, self.batch_size)) for at in begins]

    def forward(self, samples: slice = slice(None)) -> torch.Tensor:
        """Return the loss of samples, times their share of the batch; all by default."""
        share = len(range(self.batch_size)[samples]) / self.batch_size
        inputs, targets = (_part(v, samples, self.batch_size) for v in (self.inputs, self.targets))
        # The host is the device "meta", which the tracker does not count.
        hooks = saved_tensors_hooks(lambda x: x.to("meta"), partial(torch.empty_like, device="cpu"))
        away = hooks if self.offload else nullcontext()
        with away, torch.autocast("cpu", self.autocast, enabled=self.autocast is not None):
            # A script's variable has the output until the next one exists.
            self.output = _call(self.model, inputs)
            loss = self.loss(self.output, *_as_tuple(targets))
        return loss * share if share < 1 else loss

    def run(self, most: int | None = None) -> None:
        """Compute all passes, or the first `most` of them, and update the weights."""
        for samples in self.passes()[:most]:
            self.between_passes()
            loss = self.forward(samples)
            if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
                got = tuple(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
                raise PredictionError(f"the loss is {got}: expected a tensor with one number")
            if not loss.requires_grad:
                raise PredictionError("no weight on the way to the loss requires a gradient")
            loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


def predict_memory(
    model: nn.Module | Callable[[], nn.Module], inputs: Any, **options: Any
) -> Prediction:
    """Predict the peak GiB of training on a GPU; this needs no GPU, and computes nothing.

    A step runs on fake tensors, when the optimizer has its state, and PyTorch's MemTracker adds up
    the storages that are alive after each operator. The prediction does not include the workspaces
    of cuDNN and cuBLAS (0.1 to 0.5 GiB), the CUDA context, and memory that the allocator reserves
    without using it. `torch.compile` is left out: it mostly saves memory.

    Args:
        model: is not changed; a function that returns it creates it without memory.
        inputs: the model's: a tensor, or several as a tuple or, by name, a dict. Tensors may be
            on any device, also "meta", where they take no memory. Or (batch, function): the
            function returns the inputs for a batch.
        targets: a tensor, or a tuple of tensors, that the loss gets after the output.
        loss: returns the loss for the model's output; by default, the mean of the first tensor
            in the output.
        optimizer: "adamw", "adam", "sgd" (with momentum), or a function that creates the optimizer
            of parameters.
        autocast: torch.bfloat16 or torch.float16; None for the weights' own type.
        checkpointing: modules that recompute their activations, or their names; "blocks" for the
            blocks that are repeated.
        channels_last: whether images and filters have this layout.
        offload: whether activations are kept in the host's memory.
        micro_batches: the passes whose gradients are summed before an update.

    Raises:
        PredictionError: something is needed that fake tensors lack, or PyTorch refuses the step.
    """
    with fake_step(model, inputs, **options) as step:
        return predict_step(step)


OPTIONS = inspect.signature(FakeStep).replace(return_annotation=Prediction)
predict_memory.__signature__ = OPTIONS  # for `help`


@contextmanager
def fake_step(
    model: nn.Module | Callable[[], nn.Module], inputs: Any, *, advice: str = MEASURE, **options
) -> Iterator[FakeStep]:
    """Create a model's training step on fake tensors, to be used inside this context.

    Args:
        model: and `inputs`, `options`: as in `predict_memory`.
        advice: what to do instead, for the message of an error.

    Raises:
        PredictionError: as in `predict_memory`.
    """
    OPTIONS.bind(model, inputs, **options)  # an unknown option is a TypeError, as elsewhere
    with explained(advice):
        model = _created(model)
        if isinstance(inputs, tuple) and len(inputs) == 2 and callable(inputs[1]):
            inputs = create(partial(inputs[1], inputs[0]))
        with fake_tensors(), _uncompiled():
            yield FakeStep(model, inputs, **options)


def predict_step(step: FakeStep) -> Prediction:
    """Predict a step's peak; call it inside `fake_tensors()`."""
    update_once(step.optimizer)
    state = {t.untyped_storage() for t in tensors_in([*step.optimizer.state.values()])}
    with tracked(step) as held:
        step.run(most=2)  # only the second pass finds earlier gradients, as later ones do
    # The tracker adds what the optimizer needs for a moment.
    for_a_moment = max(0.0, held["Optstate"] - sum(storage.nbytes() for storage in state) / GIB)
    held["Optstate"] -= for_a_moment
    held["Temp"] += for_a_moment
    parts = {
        "weights_gib": ("Parameter", "Buffer"),
        "gradients_gib": ("Gradient",),
        "optimizer_gib": ("Optstate",),
        "activations_gib": ("Activation",),
        "other_gib": ("Temp", "Other"),
    }
    split = {name: sum(held[kind] for kind in kinds) for name, kinds in parts.items()}
    return Prediction(peak_gib=held["Total"], **split)


def largest_batch(
    make_inputs: Callable[[int], Any],
    model: nn.Module | Callable[[], nn.Module],
    limit_gib: float,
    *,
    make_targets: Callable[[int], Any] = lambda batch: (),
    **options: Any,
) -> int:
    """Return the largest batch whose peak is at most `limit_gib`; 0 if there is none.

    Memory grows linearly with the batch, or faster, so that a line through two predictions leads
    to the next; the last ones are of the result, and of one sample more.

    Args:
        make_inputs: returns the model's inputs for a batch.
        make_targets: returns the loss's targets for a batch.
        options: as in `predict_memory`.
    """
    with explained():
        model = _created(model)

    def peak(batch: int) -> float:
        targets = create(partial(make_targets, batch))
        inputs = (batch, make_inputs)
        return predict_memory(model, inputs, targets=targets, **options).peak_gib

    least = options.get("micro_batches", 1)
    peaks: dict[int, float] = {}
    fits, too_large = 0, LARGEST
    batch = 8 * least
    while too_large - fits > 1 and too_large > least:
        peaks[batch] = peak(batch)
        if peaks[batch] <= limit_gib:
            fits = batch
        else:
            too_large = batch
        low, high = max(fits, least), too_large - 1
        if len(peaks) == 1:
            batch = 2 * batch if fits else max(least, batch // 2)
        else:  # through the two that are nearest to the limit
            a, b = sorted(sorted(peaks, key=lambda size: abs(peaks[size] - limit_gib))[:2])
            slope = (peaks[b] - peaks[a]) / (b - a)
            batch = int(a + (limit_gib - peaks[a]) / slope) if slope > 0 else LARGEST
        # Neither far beyond what was predicted, nor what is known already.
        batch = min(max(batch, low + (low in peaks)), high, 16 * max(peaks))
        if batch in peaks:
            batch = high
    return fits


def update_once(optimizer: torch.optim.Optimizer) -> None:
    """Update with zero gradients, so that the optimizer has its state."""
    for weight in (weight for group in optimizer.param_groups for weight in group["params"]):
        if weight.requires_grad:
            weight.grad = torch.zeros_like(weight)
    optimizer.step()
    optimizer.zero_grad()


def checkpoint_modules(modules: Iterable[nn.Module], kept: Iterable[Any] = ()) -> None:
    """Let modules recompute their activations in backward, except the results of some operators."""
    selective = partial(create_selective_checkpoint_contexts, [*kept])
    how = {"context_fn": selective} if kept else {}
    for module in modules:
        module.forward = partial(checkpoint, module.forward, use_reentrant=False, **how)


def saved_tensors(forward: Callable[[], Any], known: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Run a forward pass; return what it saves for backward, once per storage not in `known`."""
    storages = {tensor.untyped_storage() for tensor in known}
    saved: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if (storage := tensor.untyped_storage()) not in storages:
            storages.add(storage)
            saved.append(tensor)
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        forward()
    return saved


@contextmanager
def tracked(step: FakeStep, tracker: Any = None) -> Iterator[dict[str, float]]:
    """Measure GiB by kind at the peak of memory in this context; filled when it ends.

    The kinds are those of PyTorch's MemTracker: Parameter, Buffer, Gradient, Activation, Temp
    (made during backward), Optstate, Other; and Total. Another tracker has its own.
    """
    held: dict[str, float] = {}
    if tracker is None:
        tracker = memory_tracker()
        tracker.track_external(step.model, step.optimizer, *step.tensors)
    # Weak references are slow, and the tracker visits all modules after each operator.
    tracker.memory_tracking = {}
    step.between_passes = tracker.reset_mod_stats  # or it would refuse the second pass
    with tracker:
        yield held
    snapshot = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]
    held.update({getattr(kind, "value", kind): size / GIB for kind, size in snapshot.items()})


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """Return a network's repeated blocks: the most numerous ones that have most of its weights.

    Raises:
        PredictionError: no module has children of one class, themselves with children.
    """
    repeated: dict[type, dict[nn.Module, int]] = {}
    for sequence in model.modules():
        if isinstance(sequence, (nn.ModuleList, nn.Sequential)):
            kinds = {type(child) for child in sequence}
            if len(kinds) == 1 and any(True for child in sequence for _ in child.children()):
                sizes = {b: sum(p.numel() for p in b.parameters()) for b in sequence}
                repeated.setdefault(kinds.pop(), {}).update(sizes)
    repetitions = [blocks for blocks in repeated.values() if len(blocks) > 1]
    if not repetitions:
        raise PredictionError(
            f"checkpointing='blocks': {type(model).__name__} has no list of equal blocks. Name the "
            f"modules that recompute their activations"
        )
    most = max(sum(blocks.values()) for blocks in repetitions)
    return [*max((blocks for blocks in repetitions if 2 * sum(blocks.values()) >= most), key=len)]


def _mean(output: Any, *targets: torch.Tensor) -> torch.Tensor:
    tensors = tensors_in(output) or tensors_in(getattr(output, "__dict__", ()))
    outputs = [tensor for tensor in tensors if tensor.is_floating_point()]
    if not outputs:
        raise PredictionError(
            f"the model returns {type(output).__name__}, without a tensor: pass `loss`, a function "
            f"of the output"
        )
    return outputs[0].mean()


def _call(model: nn.Module, inputs: Any) -> Any:
    return model(**inputs) if isinstance(inputs, Mapping) else model(*_as_tuple(inputs))


def _as_tuple(values: Any) -> tuple[Any, ...]:
    return tuple(values) if isinstance(values, (tuple, list)) else (values,)


def _batch_size(inputs: Any) -> int:
    sizes = [len(tensor) for tensor in tensors_in(inputs) if tensor.dim()]
    if not sizes:
        raise PredictionError(
            f"inputs={inputs!r}: expected a tensor, a tuple or dict with one, or (batch, function)"
        )
    return sizes[0]


def _part(values: Any, samples: slice, batch: int) -> Any:
    """Return the samples of all tensors that have as many as the batch."""
    if samples == slice(None):
        return values
    return tree_map_only(
        torch.Tensor, lambda t: t[samples] if t.dim() and len(t) == batch else t, values
    )


def _optimizer(
    optimizer: str | Callable[[Any], torch.optim.Optimizer], model: nn.Module
) -> torch.optim.Optimizer:
    if isinstance(optimizer, str) and optimizer not in OPTIMIZERS:
        raise PredictionError(
            f"optimizer={optimizer!r}: expected {', '.join(OPTIMIZERS)}, or a function of "
            f"parameters"
        )
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    if not weights:
        raise PredictionError(f"{type(model).__name__} has no weight that requires a gradient")
    created = (OPTIMIZERS[optimizer] if isinstance(optimizer, str) else optimizer)(weights)
    for group in created.param_groups:
        # On a GPU, PyTorch's own optimizers update all weights at once, with larger buffers.
        if group.get("foreach", False) is None and not group.get("fused"):
            group["foreach"] = True
    return created


def _copies(which: Any, model: nn.Module, copy: nn.Module) -> list[nn.Module]:
    """Return a copy's modules for modules, or their names, of a model."""
    if which == "blocks":
        return blocks_of(copy)
    if isinstance(which, str):
        raise PredictionError(
            f"checkpointing={which!r}: expected 'blocks', or a list of modules or of their names"
        )
    names = {module: name for name, module in model.named_modules()}
    names |= {name: name for name in names.values()}
    which = [*which]
    for module in which:
        if module not in names:
            word = module if isinstance(module, str) else type(module).__name__
            raise PredictionError(f"checkpointing: {word} is no module of {type(model).__name__}")
    return [copy.get_submodule(names[module]) for module in which]


def _fake_tensors_of(values: Any, layout: torch.memory_format | None = None) -> Any:
    """Return fake tensors, on the CPU, in place of all tensors."""
    return tree_map_only(torch.Tensor, partial(_fake, layout=layout), values)


def _fake(tensor: torch.Tensor, layout: torch.memory_format | None = None) -> torch.Tensor:
    sizes = tensor.size(), tensor.stride()
    fake = torch.empty_strided(*sizes, dtype=tensor.dtype, device="cpu")
    if layout and tensor.dim() == 4:
        fake = fake.to(memory_format=layout)
    if isinstance(tensor, nn.Parameter):
        weight = nn.Parameter(fake, requires_grad=tensor.requires_grad)
        if not weight.requires_grad:  # MemTracker registers hooks on all weights
            weight.register_hook = lambda hook: RemovableHandle(OrderedDict())
            weight.register_post_accumulate_grad_hook = weight.register_hook
        return weight
    return fake.requires_grad_(tensor.requires_grad)


def _fake_copy(model: nn.Module, layout: torch.memory_format | None) -> nn.Module:
    """Return a copy of a model with fake weights."""
    memo: dict[int, Any] = {}
    for module in model.modules():
        for tensor in tensors_in(vars(module)):  # also those in lists
            if id(tensor) not in memo:
                is_weight = isinstance(tensor, nn.Parameter)
                memo[id(tensor)] = _fake(tensor, layout if is_weight else None)
    return deepcopy(model, memo)


def _created(model: Any) -> nn.Module:
    """Return a model, created without memory if it is a function, and checked."""
    if callable(model) and not isinstance(model, nn.Module):
        model = create(model)
    if not isinstance(model, nn.Module):
        raise PredictionError(
            f"model={type(model).__name__}: expected a torch.nn.Module, or a function that returns "
            f"one"
        )
    if type(model).__name__ == "OptimizedModule":  # of torch.compile
        model = model.get_submodule("_orig_mod")
    for module in model.modules():
        for kind in type(module).__mro__:
            if kind.__name__ in WRAPPERS:
                raise PredictionError(f"the model is a {kind.__name__}: {WRAPPERS[kind.__name__]}")
        if any(isinstance(p, nn.parameter.UninitializedParameter) for p in module.parameters()):
            raise PredictionError(
                f"{type(module).__name__} has weights without a shape: run one batch first"
            )
    return model


def create(function: Callable[[], Any]) -> Any:
    """Call a function that creates tensors, on the device "meta" if it can.

    It can't if it reads numbers, or moves what it creates to a device.
    """
    with torch.random.fork_rng(devices=[]):
        try:
            with torch.device("meta"):
                return function()
        except Exception:  # whatever a user's function raises for tensors without numbers
            return function()


@contextmanager
def _uncompiled() -> Iterator[None]:
    """Run compiled parts of a model operator by operator."""
    with ExitStack() as stack:
        if "torch._dynamo" in sys.modules:  # without it, nothing was compiled
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield


@contextmanager
def explained(advice: str = MEASURE) -> Iterator[None]:
    """Turn an error of the user's model into one that names the line and what to do."""
    log = logging.getLogger(FakeTensorMode.__module__)  # it prints each error's stack
    level = log.level
    try:
        log.setLevel(logging.CRITICAL)
        with warnings.catch_warnings():
            # It has the text of the model.
            warnings.filterwarnings("ignore", message="global module forward hook")
            yield
    except PredictionError:
        raise
    except Exception as error:  # whatever a user's code raises
        raise PredictionError(_explanation(error, advice)) from error
    finally:
        log.setLevel(level)


def _explanation(error: Exception, advice: str) -> str:
    where = _line_of(error)
    where = f" ({where})" if where else ""
    if isinstance(error, NEEDS_NUMBERS):
        name = str(error.func)
        if "_local_scalar_dense" in name:
            name = f"{name}, as in .item(), float() or `if`,"
        return f"{name} needs numbers{where}, and a prediction has only shapes. Instead, {advice}"
    first = (str(error).strip() or "no message").splitlines()[0]
    return (
        f"{type(error).__name__}: {first.rstrip('.')}{where}. This step ran on tensors without "
        f"numbers, on the CPU. If the model does train on a GPU, {advice}"
    )


def _line_of(error: Exception) -> str:
    """Return the user's innermost line that led to an error, or that of another library."""
    stack = traceback.extract_tb(error.__traceback__)
    pytorch = f"{Path(torch.__file__).parent}/"
    other = [f for f in stack if "site-packages" in f.filename and pytorch not in f.filename]
    own = [frame for frame in stack if is_own(frame.filename)] or other
    return f"{Path(own[-1].filename).name}:{own[-1].lineno}: {own[-1].line}" if own else ""
