"""What one training step really did: formats, layouts and devices, seen below autocast.

A script can ask for bf16 and compute in fp32. So the first step of every run is watched where
PyTorch hands operators to the hardware, after autocast has chosen their types, in forward and
backward. What was seen goes into the record, and checks are made of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

if TYPE_CHECKING:
    import pandas as pd

aten = torch.ops.aten
FORWARD = (aten.convolution.default,)
BACKWARD = (aten.convolution_backward.default,)
UNSCALE = (aten._amp_foreach_non_finite_check_and_unscale_.default,)
UPDATE_SCALE = (aten._amp_update_scale_.default,)


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

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        phase = self._phase()
        if func in FORWARD:
            self._note_forward(*args[:2])
        elif func in BACKWARD:
            self._count("backward_types", _type(args[1]))
        elif func is aten._to_copy.default and kwargs and kwargs.get("non_blocking"):
            self._seen.add("non_blocking")
        elif func in UNSCALE:
            self._seen.add("unscaled")
        elif func in UPDATE_SCALE:
            self._seen.add("scale_updated")
        elif func.namespace == "c10d":
            self._count("collectives", func._schema.name.removeprefix("c10d::").rstrip("_"))
        elif phase == "optimizer" and func._schema.name.endswith("_"):  # it works in place
            self._note_update(args[0])
        elif phase != "optimizer" and func is aten.mul.Tensor and _are_scalars(args):
            self._seen.add("loss_scaled")
        if phase == "backward" and torch.is_autocast_enabled(self._device_type):
            self._seen.add("autocast_in_backward")
        return func(*args, **(kwargs or {}))

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
            }

    def _note_update(self, target: Any) -> None:
        for tensor in target if isinstance(target, list | tuple) else [target]:
            if isinstance(tensor, torch.Tensor) and tensor.dim() > 0:
                self._count("updated_types", _type(tensor))

    def _count(self, what: str, value: str) -> None:
        self._counts.setdefault(what, Counter())[value] += 1

    def evidence(self) -> dict[str, Any]:
        """What was seen, for the record: counts of operators by type, layout and device."""
        flags = ("loss_scaled", "unscaled", "scale_updated", "autocast_in_backward", "non_blocking")
        counts = {what: dict(counter) for what, counter in self._counts.items()}
        found = {**counts, **{flag: flag in self._seen for flag in flags}}
        return found | ({"ddp": self._ddp} if self._ddp else {})


class Weights:
    """What the optimizer is given: how large the first gradients are, and the weights at the end.

    Over ranks both must agree, or they do not train one network.
    """

    def __init__(self) -> None:
        self._optimizer: torch.optim.Optimizer | None = None
        self._norm: float | None = None
        self._hook = register_optimizer_step_pre_hook(self._look)

    def _look(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if self._optimizer is not None:  # the first update alone; hooks cannot go while they run
            return
        self._optimizer = optimizer
        if getattr(optimizer, "grad_scale", None) is None:  # else they are still scaled
            gradients = [each.grad for each in self._parameters() if each.grad is not None]
            self._norm = float(torch.nn.utils.get_total_norm(gradients))

    def _parameters(self) -> list[torch.Tensor]:
        groups = self._optimizer.param_groups if self._optimizer else []
        return [each for group in groups for each in group["params"]]

    def evidence(self) -> dict[str, Any]:
        """gradient_norm of the first update, weights_sum now; None where there was no update."""
        self._hook.remove()
        # On the host: a device may be full, and Apple's has no float64.
        weights = [float(each.detach().cpu().double().sum()) for each in self._parameters()]
        total = sum(weights) if weights else None
        return {"gradient_norm": self._norm, "weights_sum": total}


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


def layout(tensor: torch.Tensor) -> str:
    """NCHW, NHWC, other; or "either" where one channel or one pixel leaves no difference."""
    nchw = tensor.is_contiguous()
    nhwc = tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    if nchw and nhwc:
        return "either"
    return "NCHW" if nchw else "NHWC" if nhwc else "other"


def _type(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _are_scalars(args: tuple) -> bool:
    return all(isinstance(arg, torch.Tensor) and arg.dim() == 0 for arg in args[:2])
