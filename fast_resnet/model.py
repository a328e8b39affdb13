"""A ResNet whose training steps run as Triton kernels, below autograd.

For autograd, the network is one function, because each function costs time on the host. It is six,
one per segment, with DDP or hooks of weights, which take a segment's gradients at once, and with
frozen weights, below which backward stops. Hooks of a stage split it there. So criterion, loss
scale, optimizer, schedule, weight averages, checkpoints and DDP work as in any other training loop.
"""

from __future__ import annotations

import os
import sys
import warnings
from importlib.util import find_spec
from itertools import pairwise
from math import isqrt
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torchvision.models.resnet import ResNet

from fast_resnet import _compat, structure
from fast_resnet.ddp import GradientAverage, ignores_parameters, names_without_ddp
from fast_resnet.formulas import as_images, as_rows
from fast_resnet.structure import HEAD, STEM

if TYPE_CHECKING:
    from fast_resnet.graphs import Graphs
    from fast_resnet.network import Tape

EAGER_STEPS = 3  # steps on images of one shape before CUDA graphs are captured
STRIDE = 32  # an image's height must be a multiple of this, because it is halved five times
MAX_ELEMENTS = 2**30  # of a tensor: kernels have 32-bit indices
CAPABILITY = (8, 0)  # compute capability of an A100
HALF = (torch.float16, torch.bfloat16)

latest: dict[str, str] = {}  # the "form" of this process's last steps, and "why"


class Kernels(nn.Module):
    """Training steps run as kernels if the kernels support them. Otherwise, the code of the class
    below runs, which is the network's own."""

    library: str  # that defines the network
    _step: Step | None = None
    _average: GradientAverage | None = None  # if DDP wraps it
    _warned: frozenset[str] = frozenset()

    @property
    def _ddp_params_and_buffers_to_ignore(self) -> list[str]:
        """DDP reads this attribute of the network that it wraps (pytorch/pytorch, issue 43690)."""
        return [] if unavailable(self.conv1.weight.device) else names_without_ddp(self)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits [n, classes] of images [n, 3, h, w]."""
        is_traced = torch.jit.is_tracing() or isinstance(images, torch.fx.Proxy)
        if is_traced or torch.compiler.is_exporting():
            return super().forward(images)  # a graph of layers
        return self._train_or_evaluate(images)

    @torch.compiler.disable
    def _train_or_evaluate(self, images: torch.Tensor) -> torch.Tensor:
        # Also in evaluation mode, because users may train with frozen statistics.
        average = self._gradient_average() if self.training or torch.is_grad_enabled() else None
        modules = list(_compat.modules_of(self))
        norms = [m for m in modules if isinstance(m, nn.BatchNorm2d)]
        trains = norms and self.training and all(norm.training for norm in norms)
        if not trains or torch.is_inference_mode_enabled():
            return self._by_layers(images, average)
        dtype = step_dtype(images)
        reason = self._unsupported_step(images, dtype, modules)
        if not reason and (self._step is None or self._step.is_outdated(dtype, modules)):
            self._step = None
            if not (reason := structure.difference(self) or wrong_weights(self)):
                self._step = Step(self, dtype)
        if reason:
            self._warn(reason)
            return self._by_layers(images, average)
        self._step.average = average
        return self._step(images)

    def _by_layers(self, images: torch.Tensor, average: GradientAverage | None) -> torch.Tensor:
        scores = super().forward(images)
        if average and scores.requires_grad:
            average.average_later(scores)
        return scores

    def _unsupported_step(
        self, images: torch.Tensor, dtype: torch.dtype, modules: list[nn.Module]
    ) -> str:
        """Return why the kernels cannot compute this step; "" if they can."""
        # FSDP2 replaces the class, and gathers the weights of the whole network before it runs.
        if "library" not in type(self).__dict__ and not is_sharded(self):
            return f"{type(self).__name__} manages its weights"
        if next(self.parameters(), None) is None:
            return "its weights are not parameters, as in a replica of DataParallel"
        # Kernels call no layers. Hooks of the network still run, and a step calls those of stages.
        if _compat.has_hooks(modules[1:], [getattr(self, n, None) for n in structure.LAYERS]):
            if any(map(is_sharded, modules[1:])):
                return "FSDP2 shards single layers: call fully_shard for the whole network only"
            return "one of its layers has a hook"
        methods = {"_forward_impl", "forward_features", "forward_head"} & self.__dict__.keys()
        if methods or any("forward" in m.__dict__ for m in modules[1:]):
            return "a forward method is replaced"
        if _compat.is_transformed(images) or _compat.is_transformed(self.conv1.weight):
            return "torch.func transforms it"
        return unavailable(images.device) or wrong_images(self, images, dtype)

    def _warn(self, reason: str) -> None:
        latest.update(form=self.library, why=reason)
        if reason not in self._warned:
            self._warned |= {reason}
            text = f"fast_resnet trains by {self.library}'s own code: {reason}"
            warnings.warn(text, stacklevel=7)  # the line that calls the network

    def _gradient_average(self) -> GradientAverage | None:
        """Return the average over ranks for this step; None without DDP, or under `no_sync`."""
        ddp = _compat.active_ddp()
        if ddp is None or ddp.module is not self or not ignores_parameters(ddp):
            return None
        if self._average is None or not self._average.is_for(ddp):
            self._average = GradientAverage(self, ddp)
        return self._average if ddp.require_backward_grad_sync else None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out a step's graphs and buffers: a copy creates new ones when it trains."""
        return {k: v for k, v in self.__dict__.items() if k not in ("_step", "_average")}


class FastResNet(Kernels, ResNet):
    """torchvision's network, with its weights."""

    library = "torchvision"


def is_interpreted() -> bool:
    """Return whether kernels run in Triton's interpreter: on the CPU, in any precision."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def is_sharded(module: nn.Module) -> bool:
    """Return whether FSDP2 shards a module."""
    fsdp = sys.modules.get("torch.distributed.fsdp")  # its import takes long
    return fsdp is not None and isinstance(module, fsdp.FSDPModule)


def unavailable(device: torch.device) -> str:
    """Return why kernels do not run on this device; "" if they do."""
    if find_spec("triton") is None:
        return "the kernels are written in Triton, which is not installed"
    if is_interpreted():
        return ""
    if device.type != "cuda" or torch.version.cuda is None:
        return f"the kernels need an NVIDIA GPU, and the device is {device.type}"
    if torch.cuda.get_device_capability(device) < CAPABILITY:
        return f"{torch.cuda.get_device_name(device)} is older than the kernels' A100"
    return ""


def step_dtype(images: torch.Tensor) -> torch.dtype:
    """Return the type that convolutions would use: autocast's type, or the images' type."""
    kind = images.device.type
    on = torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(kind) if on else images.dtype


def wrong_dtype(dtype: torch.dtype) -> str:
    """Return why kernels do not compute in dtype; "" if they do."""
    if dtype in HALF or is_interpreted():
        return ""
    return f"the kernels compute in fp16 or bf16, and autocast gives {str(dtype).split('.')[-1]}"


def _largest(model: nn.Module, height: int) -> int:
    """Return how many elements the largest tensor has per image: in the stem or a first block."""
    sizes, height = [model.conv1.out_channels * (height // 2) ** 2], height // 4
    for block in (getattr(model, name)[0] for name in structure.LAYERS):
        sizes.append(block.conv1.out_channels * height**2)
        height //= block.conv2.stride[0]
        sizes.append(block.conv3.out_channels * height**2)
    return max(sizes)


def wrong_images(model: nn.Module, images: torch.Tensor, dtype: torch.dtype) -> str:
    """Return why kernels do not take these images; "" if they do."""
    if images.dim() != 4 or images.shape[1] != 3:
        return f"images have shape {tuple(images.shape)}, not [n, 3, height, width]"
    n, _, height, width = images.shape
    if width != height or height % STRIDE:
        return f"images of {height} x {width} pixels are not square, or not a multiple of {STRIDE}"
    if n * _largest(model, height) >= MAX_ELEMENTS:
        return f"a batch of {n} images of {height} pixels is too large for 32-bit indices"
    if n * (height // STRIDE) ** 2 < 2:
        return "the last layer would get a single pixel"  # torchvision raises an error
    if images.requires_grad:
        return "images require gradients"
    return wrong_dtype(dtype)


def wrong_weights(model: nn.Module) -> str:
    """Return why kernels do not train these weights; "" if they do."""
    weights = [*model.parameters()]
    if any(weight.dtype != torch.float32 for weight in weights):
        return "its weights are not in fp32"
    if len({weight.device for weight in weights}) > 1:
        return "its weights are on several devices"
    for weight in weights:
        formats = [torch.contiguous_format] + [torch.channels_last] * (weight.dim() == 4)
        if not any(weight.is_contiguous(memory_format=format) for format in formats):
            return "a weight is not contiguous in memory"
    if is_interpreted():
        return ""
    products = [m for m in model.modules() if isinstance(m, nn.Conv2d) and m.kernel_size == (1, 1)]
    for channels in (n for conv in products for n in (conv.in_channels, conv.out_channels)):
        if channels != 64 and channels % 128:
            return f"a layer has {channels} channels: the kernels take 64 or a multiple of 128"
    return ""


class _Span(torch.autograd.Function):
    """Segments of a step. Their parameters are arguments so that autograd gives them gradients."""

    @staticmethod
    def forward(ctx, step: Step, span: range, x: torch.Tensor, *parameters: torch.Tensor):
        ctx.step, ctx.span, ctx.count = step, span, step.count
        return step.forward(span, x)

    @staticmethod
    @once_differentiable
    def backward(ctx, d: torch.Tensor):
        is_last = not ctx.needs_input_grad[2]
        below, gradients = ctx.step.backward(ctx.span, d, ctx.count, is_last)
        return None, None, below, *gradients


class _Features(torch.autograd.Function):
    """A copy of a segment's output as images [n, C, h, w], for hooks and for the next segment."""

    @staticmethod
    def forward(ctx, step: Step, number: int, x: torch.Tensor):
        ctx.step, ctx.number, n = step, number, step.shape[0]
        ctx.save_for_backward(x > 0)
        return as_images(x.clone(), n, isqrt(len(x) // n))

    @staticmethod
    @once_differentiable
    def backward(ctx, d: torch.Tensor):
        return None, None, ctx.step.segments.masked(d, *ctx.saved_tensors, ctx.number)


class Step:
    """State of a network's training steps: its segments, the last tape, and CUDA graphs."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        from fast_resnet.network import Segments  # imported here because it needs Triton

        self.device = model.conv1.weight.device
        stages = enumerate(structure.LAYERS, 1)
        self._hooked = [n for n, name in stages if _compat.has_hooks([getattr(model, name)])]
        tapped = {boundary for number in self._hooked for boundary in (number - 1, number)}
        self.segments = Segments(model, dtype, tapped)
        self._weights = list(model.parameters())
        self._is_split = self._needs_segments(model)
        begins = [n for n in range(HEAD + 1) if self._is_split or n == STEM or n - 1 in tapped]
        self.parameters = {
            span: [p for m in self.segments.modules_in(span) for p in m.parameters(recurse=False)]
            for span in (range(*ends) for ends in pairwise([*begins, HEAD + 1]))
        }
        self._modules = list(_compat.modules_of(model))
        self._addresses, self._attributes = addresses(self._modules), settings(self._modules)
        self.count, self._next_number = 0, -1
        self._tape: Tape | None = None
        self._graphs: Graphs | None = None
        self.shape, self._repeats = torch.Size(), 0
        self._captured = False  # whether the current step runs as graphs
        # Graphs read the weights at fixed addresses.
        self._may_capture = self.device.type == "cuda" and not is_sharded(model)
        self.average: GradientAverage | None = None  # over ranks, in the current step

    def _needs_segments(self, model: nn.Module) -> bool:
        """Return whether DDP or hooks take gradients early, or backward may stop at frozen ones."""
        takes_early = model._average is not None or _compat.has_tensor_hooks(self._weights)
        return takes_early or not all(weight.requires_grad for weight in self._weights)

    def is_outdated(self, dtype: torch.dtype, modules: list[nn.Module]) -> bool:
        """Return whether dtype, addresses, layers or their attributes have changed."""
        return (
            dtype != self.segments.dtype
            or (not self._is_split and self._needs_segments(modules[0]))
            or len(modules) != len(self._modules)
            or any(a is not b for a, b in zip(modules, self._modules))
            or addresses(modules) != self._addresses
            or settings(modules) != self._attributes
        )

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits [n, classes] of images [n, 3, h, w]."""
        x = below = self._prepared(images)
        for span, parameters in self.parameters.items():
            x, number = _Span.apply(self, span, x, *parameters), span[-1]
            if number in self.segments.tapped:
                features = _Features.apply(self, number, x)
                if number in self._hooked:
                    stage = self.segments.layers[number - 1]
                    features = _compat.call_forward_hooks(stage, below, features)
                below = features
                # A copy, because a loss may change the features in place.
                x = as_rows(features).to(x.dtype, copy=True).contiguous()
        return x

    @torch.no_grad()
    def _prepared(self, images: torch.Tensor) -> torch.Tensor:
        """Return images in half precision, with a fourth channel of zeros for the first layer."""
        self.count, self._tape = self.count + 1, None
        n, _, height, width = images.shape
        self._repeats = self._repeats + 1 if images.shape == self.shape else 1
        self.shape = images.shape
        self._captured = self._graphs is not None and len(self._graphs.images) == n
        self._captured = self._captured and self._graphs.images.shape[2:] == (height, width)
        if self._captured:
            x = self._graphs.images
        else:
            shape = (n, 4, height, width)
            x = torch.zeros(shape, device=images.device, dtype=self.segments.dtype)
            x = x.to(memory_format=torch.channels_last)
        x[:, :3].copy_(images)
        if self._may_capture and not self._captured and self._repeats > EAGER_STEPS:
            self._capture(x)
        return x

    def _capture(self, images: torch.Tensor) -> None:
        """Capture graphs that read `images`; later images of this shape use them."""
        from fast_resnet.graphs import Graphs

        self._graphs = self._tape = None  # keep graphs for one shape only, to save memory
        try:
            with Settings(self.device):
                self._graphs = Graphs(self.segments, self.parameters, images)
            self._captured = True
        except RuntimeError as error:  # different work in this process may prevent a capture
            self._may_capture = False
            print(f"fast_resnet goes on without CUDA graphs: {error}", file=sys.stderr, flush=True)

    def forward(self, span: range, x: torch.Tensor) -> torch.Tensor:
        """Run the forward pass of some segments, for autograd."""
        self._next_number = span[-1]
        with Settings(self.device):
            if self._captured:
                out = self._graphs.forward(span, x)
            else:
                out, self._tape = self.segments.forward(span, x.detach(), self._tape)
        return out.detach()  # the tape must not keep autograd's graph alive

    def backward(
        self, span: range, d: torch.Tensor, count: int, is_last: bool
    ) -> tuple[torch.Tensor | None, list[torch.Tensor | None]]:
        """Run the backward pass of some segments, for autograd. Return the gradient of their input
        and of their parameters (None if they are averaged over ranks when backward ends).

        Raises:
            RuntimeError: a later forward pass, or an earlier backward pass, used the tape.
        """
        if count != self.count or span[-1] > self._next_number:
            raise RuntimeError(
                "fast_resnet keeps what backward needs of the last forward pass in training, for "
                "one backward pass: call backward before the next forward, and once"
            )
        if self.average and self._next_number == HEAD:
            self.average.begin(self.segments.state.statistics)
        self._next_number = span[0] - 1  # a loss of features skips the segments above them
        with Settings(self.device):
            if self._captured:
                below = self._graphs.backward(span, d)
            else:
                below = self.segments.backward(span, d.contiguous(), self._tape)
            flat, gradients = self.segments.state.gradients(self.segments.modules_in(span))
            if self.average and span[-1] != HEAD:
                self.average.send(span[0], self.parameters[span], flat, gradients)
                gradients = [None] * len(gradients)
            if is_last:
                self._tape = None
            return below, gradients


class Settings:
    """Settings while kernels run: their GPU, cuDNN's fastest algorithms, and no autocast."""

    def __init__(self, device: torch.device) -> None:
        self._autocast = torch.autocast(device.type, enabled=False)
        self._device = torch.cuda.device(device if device.type == "cuda" else -1)  # -1: none
        self._benchmark = torch.backends.cudnn.benchmark

    def __enter__(self) -> None:
        self._device.__enter__()
        self._autocast.__enter__()
        torch.backends.cudnn.benchmark = True

    def __exit__(self, *error: Any) -> None:
        torch.backends.cudnn.benchmark = self._benchmark
        self._autocast.__exit__(*error)
        self._device.__exit__(*error)


def addresses(modules: list[nn.Module]) -> list[int]:
    """Return the identities and addresses of parameters and statistics that kernels use.

    FSDP2 gathers the weights of each step into the same tensors, at any address.
    """
    tensors = _compat.tensors_of(modules)
    places = [] if is_sharded(modules[0]) else [tensor.data_ptr() for tensor in tensors]
    return [*map(id, tensors), *places]


ATTRIBUTES = {
    nn.BatchNorm2d: ("eps", "momentum", "track_running_stats"),
    nn.Conv2d: ("stride", "padding", "dilation", "groups", "padding_mode"),
    nn.MaxPool2d: ("kernel_size", "stride", "padding", "dilation", "ceil_mode"),
    nn.AdaptiveAvgPool2d: ("output_size",),
}


def settings(modules: list[nn.Module]) -> list[Any]:
    """Return the layers' attributes that a step has fixed, or that kernels do not support, and
    which stages have hooks."""
    values = [
        getattr(module, name) for module in modules for name in ATTRIBUTES.get(type(module), ())
    ]
    values += [getattr(modules[0], name, None) for name in structure.OFF_IN_TIMM]
    return values + [_compat.has_hooks([getattr(modules[0], name)]) for name in structure.LAYERS]
