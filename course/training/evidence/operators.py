"""Observe what a training step really does: formats, layouts and devices, below autocast.

A script can request bf16 and still compute in fp32. So the first step of every run, its last
warm-up step and the first validation are observed where PyTorch passes operators to the hardware,
after autocast has chosen their types, in forward and backward. The results go into the record, and
the checks read them.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.module_tracker import ModuleTracker

from course._compat import TorchDispatchMode, active_ddp, base_of, group_named
from course.config import GIB
from course.runs.evidence import NOT_APPLICABLE, Ddp, NotApplicable, Operators
from course.training.attempts import attempted
from course.training.evidence.shards import Order, part

SUM = 2  # PyTorch's number for reduction="sum", which adds up the losses instead of averaging them
COLLECTIVES = ("c10d", "_c10d_functional")  # in-place operators, and functional ones
AUTOGRAD = ModuleTracker()  # `is_bw`: whether autograd runs backward in this thread
FORWARD, BACKWARD = "aten::convolution", "aten::convolution_backward"
COMPUTED = (FORWARD, "aten::addmm")
PRODUCTS = ("aten::mm", "aten::bmm", *COMPUTED, BACKWARD)
# For all three, the sixth argument is true if the batch's own statistics are used.
BATCH_NORM = tuple(f"aten::{library}_batch_norm" for library in ("native", "cudnn", "miopen"))
LOSS_BACKWARD = "aten::nll_loss_backward"
SCORES_BACKWARD = "aten::_log_softmax_backward_data"


class Observer(TorchDispatchMode):
    """Counts the operators that run in this context, by type, layout and device.

    Args:
        phase: returns the current phase of the step.
        device_type: the type of the device that trains, for instance "cuda".
    """

    def __init__(self, phase: Callable[[], str], device_type: str) -> None:
        super().__init__()
        self._phase, self._device_type = phase, device_type
        self._counts: dict[str, Counter[str]] = {}
        self._autocast_in_backward = False
        self._ddp: Ddp | NotApplicable = NOT_APPLICABLE
        self._loss_gradient: float | NotApplicable = NOT_APPLICABLE
        self._passes: list[list[float]] = []  # images, and the gradient where backward starts
        self._kept, self._order = Kept(), Order()
        self._mixed: float | NotApplicable = NOT_APPLICABLE

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self._note(func, args)
        return func(*args, **(kwargs or {}))

    @attempted("evidence")
    def _note(self, func: Any, args: tuple[Any, ...]) -> None:
        """Note an operator that is about to run."""
        phase, operator = self._phase(), func.name()
        if operator in COMPUTED and phase == "backward":  # backward itself uses other operators
            self._count("recomputed", func.overloadpacket.__name__)
        if "scaled_dot_product" in operator and phase == "forward":
            self._count("attention", func.overloadpacket.__name__.lstrip("_"))
        if operator in PRODUCTS:
            self._order.computed(phase)
        if operator == FORWARD and phase != "load":  # augmentation may use convolutions, too
            self._note_forward(*args[:2])
        elif operator == BACKWARD:
            self._count("backward_types", _type(args[1]))
        elif operator in BATCH_NORM:
            self._count("statistics", "batch" if args[5] else "running")
        elif operator == LOSS_BACKWARD:
            self._note_loss(*args[:2], reduction=args[4])
        elif operator == SCORES_BACKWARD:
            self._note_labels(args[0])
        elif func.namespace in COLLECTIVES and "wait" not in operator:
            name = func.overloadpacket.__name__.rstrip("_").replace("all_r", "allr")
            self._count("collectives", name)
            self._order.sent(phase, name, args[0])
            if phase in ("forward", "backward"):
                self._count(f"{phase}_collectives", name)
                if name == "allreduce":
                    self._count(f"{phase}_groups", str(_ranks(*args[1:3])))
        if phase == "backward" and torch.is_autocast_enabled(self._device_type):
            self._autocast_in_backward = True

    def __enter__(self) -> Observer:
        self._kept.__enter__()
        return super().__enter__()

    def __exit__(self, *problem: Any) -> None:
        super().__exit__(*problem)
        self._kept.__exit__()

    def end_pass(self) -> None:
        """Note the end of a backward pass; a step has one for each micro-batch."""
        self._kept.end_pass()

    def _note_loss(self, gradient: torch.Tensor, scores: torch.Tensor, *, reduction: int) -> None:
        """Note the gradient of the loss: the scale, or 1; for a micro-batch, times its weight."""
        images, start = len(scores), float(gradient)
        if reduction == SUM:
            start *= images
        self._passes.append([images, start])
        self._loss_gradient = round(sum(start for _, start in self._passes), 6)
        self._count("loss_types", _type(scores))

    def _note_forward(self, images: torch.Tensor, weight: torch.Tensor) -> None:
        self._count("forward_types", _type(images))
        self._count("devices", images.device.type)
        self._count("input_layouts", layout(images))
        self._count("weight_layouts", layout(weight))
        if wrapper := active_ddp():
            self._ddp = Ddp(
                bucket_mb=wrapper.bucket_bytes_cap / 2**20,
                find_unused=wrapper.find_unused_parameters,
                broadcast_buffers=wrapper.broadcast_buffers,
                ranks=distributed.get_process_group_ranks(wrapper.process_group),
            )

    def _note_labels(self, gradient: torch.Tensor) -> None:
        """Note the share of mixed labels; `gradient` is -labels / N where backward begins."""
        self._mixed = float(((gradient != 0).sum(dim=1) > 1).float().mean())

    def _count(self, what: str, value: str) -> None:
        self._counts.setdefault(what, Counter())[value] += 1

    def evidence(self) -> Operators:
        """Return the evidence for the record."""
        counts: dict[str, Any] = {what: dict(counter) for what, counter in self._counts.items()}
        operators = Operators(
            autocast_in_backward=self._autocast_in_backward,
            loss_gradient=self._loss_gradient,
            passes=self._passes,
            kept_gib=self._kept.gib,
            mixed=self._mixed,
            ddp=self._ddp,
            **counts,
        )
        return self._order.add_to(operators)


class Kept:
    """Measures what forward passes in this context save for backward.

    Autograd passes each tensor that it saves to a pair of hooks. Tensors that share a storage count
    once, and weights do not count because they exist anyway. The hooks do not receive what a script
    saves in its own way, by checkpointing or on the host, nor what selective checkpointing stores.
    So the result is what stays on the device as usual.
    """

    def __init__(self) -> None:
        self._hooks = saved_tensors_hooks(self._pack, lambda tensor: tensor)
        self._sizes: dict[int, int] = {}
        self._most = 0

    def __enter__(self) -> Kept:
        # PyTorch warns that future versions will also pass selective checkpointing's tensors to
        # hooks.
        warnings.filterwarnings("ignore", message="A saved_tensors_hooks context")
        self._hooks.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._hooks.__exit__()

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        if AUTOGRAD.is_bw:  # recomputation during backward
            return tensor.detach()
        self._note_size(tensor)
        # Without its history: otherwise, an output would keep itself alive forever.
        return tensor.detach()

    @attempted("evidence")
    def _note_size(self, tensor: torch.Tensor) -> None:
        of = base_of(tensor)
        if not (of.is_leaf and of.requires_grad):
            storage = part(tensor).untyped_storage()
            self._sizes[storage.data_ptr()] = storage.nbytes()

    def end_pass(self) -> None:
        """End a pass: backward has used up what was saved."""
        self._most = max(self._most, sum(self._sizes.values()))
        self._sizes = {}

    @property
    def gib(self) -> float:
        """The most that any pass saved, in GiB."""
        return self._most / GIB


def layout(tensor: torch.Tensor) -> str:
    """Return NCHW, NHWC or other; "either" if one channel or one pixel makes no difference."""
    image = tensor[:1]  # it has a layout, even if its batch is every second image of a larger one
    nchw = image.is_contiguous()
    nhwc = image.dim() == 4 and image.is_contiguous(memory_format=torch.channels_last)
    if nchw and nhwc:
        return "either"
    return "NCHW" if nchw else "NHWC" if nhwc else "other"


def _ranks(group: Any, name: Any) -> list[int]:
    """Return the ranks of an all-reduce's group, given its second and third argument."""
    is_functional = isinstance(name, str)
    group = group_named(name) if is_functional else distributed.ProcessGroup.unbox(group)
    return distributed.get_process_group_ranks(group)


def _type(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
