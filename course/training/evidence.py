"""What one training step really did: formats, layouts and devices, seen below autocast.

A script can ask for bf16 and compute in fp32. So the first step of every run, its last warm-up
step and the first validation are watched where PyTorch hands operators to the hardware, after
autocast has chosen their types, in forward and backward. What was seen goes into the record, and
checks are made of it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.data import IterableDataset
from torch.utils.hooks import RemovableHandle

if TYPE_CHECKING:
    import pandas as pd

SETTINGS = ("lr", "momentum", "weight_decay")
LOADER = (
    "num_workers", "persistent_workers", "prefetch_factor", "pin_memory", "drop_last", "in_order",
)  # fmt: skip
MOST = 4  # so many different things are noted
REASON = 240  # so many characters of why a graph broke
aten = torch.ops.aten
FORWARD = (aten.convolution.default,)
BACKWARD = (aten.convolution_backward.default,)
COPIES = (aten._to_copy.default, aten.copy_.default)
# Of all three the sixth argument says whether the batch's own statistics are taken.
BATCH_NORM = (
    aten.native_batch_norm.default, aten.cudnn_batch_norm.default, aten.miopen_batch_norm.default,
)  # fmt: skip
UPDATE_SCALE = (aten._amp_update_scale_.default,)
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
        self._seen: set[str] = set()
        self._ddp: dict[str, Any] = {}
        self._loss_gradient: float | None = None
        self._mixed: float | None = None
        self._scale: float | None = None
        self._pixels: list[float] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        phase = self._phase()
        if func in FORWARD and phase != "load":  # what augments images may be a convolution, too
            self._note_forward(*args[:2])
        elif func in BACKWARD:
            self._count("backward_types", _type(args[1]))
        elif func in BATCH_NORM:
            self._count("statistics", "batch" if args[5] else "running")
        elif func in LOSS_BACKWARD:
            self._loss_gradient = float(args[0])  # where backward starts: the scale, or 1
            self._count("loss_types", _type(args[1]))
        elif func in SCORES_BACKWARD:
            self._note_labels(args[0])
        elif func in COPIES and waits_not(args, kwargs or {}):
            self._seen.add("non_blocking")
        elif func in UPDATE_SCALE:
            self._seen.add("scale_updated")
            self._scale = float(args[0])
        elif func.namespace == "c10d":
            name = func._schema.name.removeprefix("c10d::").rstrip("_")
            self._count("collectives", name)
            if phase == "forward":
                self._count("forward_collectives", name)
        elif phase == "optimizer" and func._schema.name.endswith("_"):  # it works in place
            self._note_update(args[0])
        if phase == "backward" and torch.is_autocast_enabled(self._device_type):
            self._seen.add("autocast_in_backward")
        return func(*args, **(kwargs or {}))

    def _note_forward(self, images: torch.Tensor, weight: torch.Tensor) -> None:
        if "forward_types" not in self._counts:
            self._pixels = _pixels(images)
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
        flags = ("scale_updated", "autocast_in_backward", "non_blocking")
        counts = {what: dict(counter) for what, counter in self._counts.items()}
        found = {**counts, **{flag: flag in self._seen for flag in flags}}
        found |= {
            "loss_gradient": self._loss_gradient,
            "mixed": self._mixed,  # the share of images whose label has several classes
            "scale": self._scale,
            "pixels": self._pixels,
        }
        return found | ({"ddp": self._ddp} if self._ddp else {})


class Updates:
    """What optimizers do in a whole run: how often they step, and with what.

    Over ranks the first gradients and the weights at the end must agree, or they do not train one
    network.
    """

    def __init__(self) -> None:
        self._optimizers: list[torch.optim.Optimizer] = []
        self._norm: float | None = None
        self._groups: list[dict[str, float]] = []  # each set of settings that was stepped with
        self._decay: dict[str, list[float]] = {}  # what each kind of weight is pulled by
        self._in_step, self._counts = 0, []
        self.rate: float | None = None  # the learning rate of the update under way
        self._overflow: dict[str, Any] = {}
        self._hook: RemovableHandle | None = None

    def start(self) -> None:
        """Look at every optimizer's steps from here to `stop`."""
        self._hook = register_optimizer_step_pre_hook(self._look)

    def stop(self) -> None:
        """Look no more."""
        if self._hook:
            self._hook.remove()

    def _look(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if any(isinstance(each, FakeTensor) for each in _parameters(optimizer)[:1]):
            return  # a step that is only pretended, for a prediction
        self._in_step += 1
        self.rate = float(optimizer.param_groups[0]["lr"])
        for group in optimizer.param_groups:
            settings = {name: group[name] for name in SETTINGS if name in group}
            if settings not in self._groups and len(self._groups) < MOST:
                self._groups.append(settings)
        if any(each is optimizer for each in self._optimizers):
            return
        for group in optimizer.param_groups:
            for weight in group["params"]:
                found = self._decay.setdefault("filters" if weight.ndim > 1 else "vectors", [])
                if (decay := group.get("weight_decay", 0.0)) not in found and len(found) < MOST:
                    found.append(decay)
        if not self._optimizers and getattr(optimizer, "grad_scale", None) is None:  # else scaled
            gradients = [p.grad for p in _parameters(optimizer) if p.grad is not None]
            self._norm = float(torch.nn.utils.get_total_norm(gradients))
        if len(self._optimizers) < MOST:
            self._optimizers.append(optimizer)

    def overflow(self) -> None:
        """Make a gradient infinite, as one in fp16 becomes that is too large: once."""
        found = [weight for weight in self.parameters() if weight.grad is not None]
        if found and not self._overflow:  # a scaler may have left out all steps until now
            found[0].grad[(0,) * found[0].grad.dim()] = math.inf
            self._overflow = {"skipped": None}  # not known before the step's end

    def end_step(self) -> None:
        """A step of training is over."""
        self._counts.append(self._in_step)
        self._in_step, self.rate = 0, None
        if self._overflow and self._overflow["skipped"] is None:
            weights = self.parameters()
            self._overflow["skipped"] = all(bool(each.isfinite().all()) for each in weights)

    def parameters(self) -> list[torch.Tensor]:
        """What the first optimizer updates; nothing before the first update."""
        return _parameters(self._optimizers[0]) if self._optimizers else []

    def evidence(self) -> dict[str, Any]:
        """For the record.

        gradient_norm of the first update, weights_sum now (None where there was no update);
        updates: in how many steps so many; groups: the settings of the optimizer's groups; decay:
        that of "filters" (and matrices) and of "vectors", each value that some of them have;
        optimizers: how many were stepped; overflow: whether a planted one was skipped, {} without.
        """
        # On the host: a device may be full, and Apple's has no float64.
        weights = [float(each.detach().cpu().double().sum()) for each in self.parameters()]
        # The last layer has a row for each class, in whichever group that is.
        matrices = [len(each) for each in self.parameters() if each.ndim == 2]
        return {
            "gradient_norm": self._norm,
            "weights_sum": sum(weights) if weights else None,
            "updates": {str(count): each for count, each in Counter(self._counts).items()},
            "groups": self._groups,
            "decay": self._decay,
            "optimizers": len(self._optimizers),
            "parameters": sum(each.numel() for each in self.parameters()),
            "classes": matrices[-1] if matrices else None,
            "overflow": self._overflow,
        }


class Compiled:
    """What the compiler makes in a run: graphs, and places where it left a function to Python.

    Dynamo counts both for itself, so that asking hinders nothing. It is only to be asked in a run
    that compiles: importing it takes seconds.
    """

    def __init__(self) -> None:
        from torch._dynamo.utils import counters

        self._counters = counters
        self._before = self._graphs(), Counter(counters["graph_break"])
        self._after_epochs: list[int] = []
        self._warmed_up: int | None = None

    def _graphs(self) -> int:
        return self._counters["stats"]["unique_graphs"]

    def end_warmup(self) -> None:
        """From here on nothing should be compiled any more."""
        self._warmed_up = self._graphs() - self._before[0]

    def end_epoch(self) -> None:
        """The training steps of an epoch are over; its validation is still to come."""
        self._after_epochs.append(self._graphs() - self._before[0])

    def evidence(self) -> dict[str, Any]:
        """For the record.

        graphs: how many were made until the end of each epoch's training. warmed_up: until the
        end of warm-up. breaks: why a graph ended before its function did, each reason with how
        often it did.
        """
        found = Counter(self._counters["graph_break"]) - self._before[1]
        breaks = {_reason(told): times for told, times in found.most_common(MOST)}
        return {"graphs": self._after_epochs, "warmed_up": self._warmed_up, "breaks": breaks}


def _reason(told: str) -> str:
    """Of Dynamo's page about a break the two lines that say what it met."""
    lines = [line.strip() for line in told.splitlines()[:2]]
    return ": ".join(line.removeprefix("Explanation: ") for line in lines)[:REASON]


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [each for group in optimizer.param_groups for each in group["params"]]


def group() -> dict[str, Any]:
    """The process group that this process has joined: backend and timeout; {} without one."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return {}
    own = distributed.distributed_c10d._get_default_group()
    found: dict[str, Any] = {"backend": distributed.get_backend_config()}
    for device in own._device_types:  # PyTorch offers no way to ask
        options = getattr(own._get_backend(device), "options", None)
        if options is not None:
            found["timeout_s"] = options._timeout.total_seconds()
    return found


def loader(batches: Any) -> dict[str, Any]:
    """How a DataLoader loads, by its argument's names; None where it is something else.

    The course's loader has a `worker_init_fn`, too: `own_worker_init` tells of the script's own.
    """
    found = {name: getattr(batches, name, None) for name in LOADER}
    found["streams"] = isinstance(getattr(batches, "dataset", None), IterableDataset)
    begins = getattr(batches, "worker_init_fn", None)
    of_course = getattr(begins, "__module__", "").startswith("course.")
    return found | {"own_worker_init": begins is not None and not of_course}


class _Calls(TorchDispatchMode):
    """Counts calls of operators by phase, and by what `describe` says goes in and comes out."""

    def __init__(self, describe: Callable[[list[torch.Tensor]], str]) -> None:
        super().__init__()
        self._describe = describe
        self.calls: Counter[tuple[str, str, str, str]] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        inputs = self._said((args, kwargs))  # before the call: it may work in place
        output = func(*args, **(kwargs or {}))
        if inputs and not func.is_view:
            # The engine of autograd has a task while it runs backward, and none (-1) otherwise.
            backward = torch._C._current_graph_task_id() != -1
            name = func._schema.name.removeprefix("aten::")
            phase = "backward" if backward else "forward"
            self.calls[phase, name, inputs, self._said(output)] += 1
        return output

    def _said(self, values: Any) -> str:
        return self._describe([x for x in tree_leaves(values) if isinstance(x, torch.Tensor)])


def operator_calls(
    step: Callable[[], Any], describe: Callable[[list[torch.Tensor]], str]
) -> pd.DataFrame:
    """Every kind of call that a step makes below autocast, in order of its first one.

    Columns: phase ("forward" or "backward"), operator, inputs, output, calls. Views, which
    compute nothing, are left out.

    Args:
        step: runs one step of training.
        describe: says what is to be known of tensors; an operator whose inputs are described
            by "" is left out.
    """
    import pandas as pd

    with _Calls(describe) as watch:
        step()
    rows = [(*seen, calls) for seen, calls in watch.calls.items()]
    return pd.DataFrame(rows, columns=["phase", "operator", "inputs", "output", "calls"])


def waits_not(args: tuple, kwargs: dict[str, Any]) -> bool:
    """Does a script not wait for the one of COPIES that it calls with these arguments?"""
    return bool(kwargs.get("non_blocking") or args[2:] == (True,))


def layout(tensor: torch.Tensor) -> str:
    """NCHW, NHWC, other; or "either" where one channel or one pixel leaves no difference."""
    nchw = tensor.is_contiguous()
    nhwc = tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    if nchw and nhwc:
        return "either"
    return "NCHW" if nchw else "NHWC" if nhwc else "other"


def _pixels(images: torch.Tensor) -> list[float]:
    """Of the images that come in: each channel's mean, and how much neighbours differ."""
    images = images.detach().float()
    rough = (images[..., 1:] - images[..., :-1]).abs().mean()
    return [round(float(each), 3) for each in (*images.mean(dim=(0, 2, 3)), rough)]


def _type(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
