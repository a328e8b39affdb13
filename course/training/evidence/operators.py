"""What one training step really did: formats, layouts and devices, seen below autocast.

A script can ask for bf16 and compute in fp32. So the first step of every run, its last warm-up
step and the first validation are watched where PyTorch hands operators to the hardware, after
autocast has chosen their types, in forward and backward. What was seen goes into the record, and
checks are made of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils._python_dispatch import TorchDispatchMode

from course.training.evidence.saved_activations import Kept
from course.training.evidence.shards import Order

SUM = 2  # PyTorch's number for a loss that is added up instead of averaged
COLLECTIVES = ("c10d", "_c10d_functional")  # those that work in place, and those that do not
aten = torch.ops.aten
FORWARD = (aten.convolution.default,)
COMPUTED = (*FORWARD, aten.addmm.default)
BACKWARD = (aten.convolution_backward.default,)
PRODUCTS = (aten.mm.default, aten.bmm.default, *COMPUTED, *BACKWARD)
# Of all three the sixth argument says whether the batch's own statistics are taken.
BATCH_NORM = (
    aten.native_batch_norm.default,
    aten.cudnn_batch_norm.default,
    aten.miopen_batch_norm.default,
)
LOSS_BACKWARD = (aten.nll_loss_backward.default,)
SCORES_BACKWARD = (aten._log_softmax_backward_data.default,)


class Observer(TorchDispatchMode):
    """Counts, while it is entered, what the step's operators were given.

    Args:
        phase: answers in which phase of the step training is.
        device_type: of the device that trains, "cuda" for instance.
    """

    def __init__(self, phase: Callable[[], str], device_type: str) -> None:
        super().__init__()
        self._phase, self._device_type = phase, device_type
        self._counts: dict[str, Counter[str]] = {}
        self._autocast_in_backward = False
        self._ddp: dict[str, Any] = {}
        self._loss_gradient: float | None = None
        self._passes: list[tuple[int, float]] = []  # images, and where their backward starts
        self._kept, self._order = Kept(), Order()
        self._mixed: float | None = None

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        phase = self._phase()
        if func in COMPUTED and phase == "backward":  # which needs other operators itself
            self._count("recomputed", func._schema.name.removeprefix("aten::"))
        if func in PRODUCTS:
            self._order.computed(phase)
        if func in FORWARD and phase != "load":  # what augments images may be a convolution, too
            self._note_forward(*args[:2])
        elif func in BACKWARD:
            self._count("backward_types", _type(args[1]))
        elif func in BATCH_NORM:
            self._count("statistics", "batch" if args[5] else "running")
        elif func in LOSS_BACKWARD:
            self._note_loss(*args[:2], reduction=args[4])
        elif func in SCORES_BACKWARD:
            self._note_labels(args[0])
        elif func.namespace in COLLECTIVES and "wait" not in func._schema.name:
            name = func._schema.name.partition("::")[2].rstrip("_").replace("all_r", "allr")
            self._count("collectives", name)
            self._order.sent(phase, name, args[0])
            if phase in ("forward", "backward"):
                self._count(f"{phase}_collectives", name)
                if name == "allreduce":
                    self._count(f"{phase}_groups", str(_ranks(*args[1:3])))
        elif phase == "optimizer" and func._schema.name.endswith("_"):  # it works in place
            self._note_update(args[0])
        if phase == "backward" and torch.is_autocast_enabled(self._device_type):
            self._autocast_in_backward = True
        return func(*args, **(kwargs or {}))

    def __enter__(self) -> Observer:
        self._kept.__enter__()
        return super().__enter__()

    def __exit__(self, *problem: Any) -> None:
        super().__exit__(*problem)
        self._kept.__exit__()

    def end_pass(self) -> None:
        """A backward pass is over; a step has one for each micro-batch."""
        self._kept.end_pass()

    def _note_loss(self, gradient: torch.Tensor, scores: torch.Tensor, *, reduction: int) -> None:
        """Where backward starts: the scale, or 1; of micro-batches that which each one counts."""
        images, start = len(scores), float(gradient)
        if reduction == SUM:
            start *= images
        self._passes.append((images, start))
        self._loss_gradient = round(sum(start for _, start in self._passes), 6)
        self._count("loss_types", _type(scores))

    def _note_forward(self, images: torch.Tensor, weight: torch.Tensor) -> None:
        self._count("forward_types", _type(images))
        self._count("devices", images.device.type)
        self._count("input_layouts", layout(images))
        self._count("weight_layouts", layout(weight))
        # PyTorch sets it while the forward pass of a DDP model runs.
        if wrapper := getattr(DDP, "_active_ddp_module", None):
            self._ddp = {
                "bucket_mb": wrapper.bucket_bytes_cap / 2**20,
                "find_unused": wrapper.find_unused_parameters,
                "broadcast_buffers": wrapper.broadcast_buffers,
                "ranks": distributed.get_process_group_ranks(wrapper.process_group),
            }

    def _note_labels(self, gradient: torch.Tensor) -> None:
        """What each row of labels holds: the gradient of a row is -labels / N, where it begins."""
        self._mixed = float(((gradient != 0).sum(dim=1) > 1).float().mean())
        if self._loss_gradient is None:  # labels are shares of classes, whose loss is another one
            self._loss_gradient = round(-float(gradient.sum()), 4)

    def _note_update(self, target: Any) -> None:
        for tensor in target if isinstance(target, list | tuple) else [target]:
            if isinstance(tensor, torch.Tensor) and tensor.dim() > 0:
                self._count("updated_types", _type(tensor))

    def _count(self, what: str, value: str) -> None:
        self._counts.setdefault(what, Counter())[value] += 1

    def evidence(self) -> dict[str, Any]:
        """What was seen, for the record: counts of operators by type, layout and device."""
        evidence = {what: dict(counter) for what, counter in self._counts.items()}
        evidence |= {
            "autocast_in_backward": self._autocast_in_backward,
            "loss_gradient": self._loss_gradient,
            "passes": self._passes,
            "kept_gib": self._kept.gib,
            "mixed": self._mixed,  # the share of images whose label has several classes
        }
        return evidence | self._order.evidence() | ({"ddp": self._ddp} if self._ddp else {})


def layout(tensor: torch.Tensor) -> str:
    """NCHW, NHWC, other; or "either" where one channel or one pixel leaves no difference."""
    nchw = tensor.is_contiguous()
    nhwc = tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    if nchw and nhwc:
        return "either"
    return "NCHW" if nchw else "NHWC" if nhwc else "other"


def _ranks(group: Any, name: Any) -> list[int]:
    """Return the ranks of an all-reduce's group, given its second and third argument."""
    if isinstance(name, str):  # functional; PyTorch has no public way to find a group by its name
        group = distributed.distributed_c10d._resolve_process_group(name)
    else:
        group = distributed.ProcessGroup.unbox(group)
    return distributed.get_process_group_ranks(group)


def _type(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
