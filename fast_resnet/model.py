"""The algebra in Triton: training's forward and backward of a whole ResNet, below autograd.

Autograd sees six functions, one for each segment. So criterion, loss scale, optimizer, schedule,
averages, checkpoints and DDP stay the script's own.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils._python_dispatch import _disable_current_modes
from torchvision.models.resnet import ResNet

from course.training.algebra.choices import Saved
from course.training.algebra.forward import Tape
from course.training.algebra.graphs import Graphs
from course.training.algebra.kernels.compiling import Report, compile_at_once
from course.training.algebra.ranks import Shared, left_by, ours
from course.training.algebra.segments import HEAD, STEM, Segments, launches

AHEAD = True  # all kernels are compiled at once before the first step; else each when launched
EAGER_STEPS = 3  # steps on images of one shape before its graphs are captured
HALVED = 32  # an image's height must be a multiple: it is halved five times
MOST = 2**31  # elements of a tensor: kernels count in 32 bits


class _Segment(torch.autograd.Function):
    """One segment of a step. Its parameters come in so that autograd knows where gradients go."""

    @staticmethod
    def forward(ctx, step: Step, number: int, x: torch.Tensor, *parameters: torch.Tensor):
        ctx.step, ctx.number, ctx.count = step, number, step.count
        return step.forward(number, x)

    @staticmethod
    def backward(ctx, d: torch.Tensor):
        below, gradients = ctx.step.backward(ctx.number, d, ctx.count)
        return None, None, below, *gradients


class Step:
    """What a network's steps share: its segments, the tape of the last one, and graphs."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        self.device = model.conv1.weight.device
        is_gpu = self.device.type == "cuda"
        self.saved = Saved(torch.cuda.get_device_name(self.device) if is_gpu else "interpreted")
        self.segments = Segments(model, dtype, self.saved.chosen)
        self.parameters = [self.segments.parameters(number) for number in range(HEAD + 1)]
        self.places = places(model)
        self.count, self._due = 0, -1
        self._tape: Tape | None = None
        self._graphs: Graphs | None = None
        self._shape, self._seen = torch.Size(), 0
        self._captured = False  # does the step under way run by graphs?
        self._may_capture = is_gpu
        self._may_compile = is_gpu and AHEAD
        self._compiled: set[torch.Size] = set()  # for images of these shapes
        self.reports: list[Report] = []
        self.shared: Shared | None = None  # with other ranks, in the step under way

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """Logits [n, classes] of images [n, 3, h, w]."""
        x = self._prepared(images)
        for number in range(HEAD + 1):
            x = _Segment.apply(self, number, x, *self.parameters[number])
        return x

    @torch.no_grad()
    def _prepared(self, images: torch.Tensor) -> torch.Tensor:
        """Images in half precision, with a fourth channel of zeros for the first layer."""
        self.count += 1
        n, _, height, width = images.shape
        if self._may_compile and images.shape not in self._compiled:
            self._compile(images.shape)
        self._seen = self._seen + 1 if images.shape == self._shape else 1
        self._shape = images.shape
        self._captured = self._graphs is not None and len(self._graphs.images) == n
        self._captured = self._captured and self._graphs.images.shape[2:] == (height, width)
        if self._captured:
            x = self._graphs.images
        else:
            shape = (n, 4, height, width)
            x = torch.zeros(shape, device=images.device, dtype=self.segments.dtype)
            x = x.to(memory_format=torch.channels_last)
        x[:, :3].copy_(images)
        if self._may_capture and not self._captured and self._seen > EAGER_STEPS:
            self._capture(x)
        return x

    def _compile(self, shape: torch.Size) -> None:
        """All kernels that steps on images of this shape are to launch, before they do."""
        self._compiled.add(shape)
        try:
            with self._settings(), _disable_current_modes():
                noted = launches(self.segments, shape)
            self.reports.append(compile_at_once(noted, self.device))
        except Exception as error:  # Triton compiles each when it is launched, as it always does
            self._may_compile = False
            print(f"algebra compiles kernel by kernel: {error}", file=sys.stderr, flush=True)

    def _capture(self, images: torch.Tensor) -> None:
        """From here on images of this shape go through graphs, which look for them here."""
        self._graphs = self._tape = None  # only one shape's at a time: they hold memory
        self.saved.write()
        try:
            with self._settings():
                self._graphs = Graphs(self.segments, images)
            self._captured = True
        except RuntimeError as error:  # what else runs in this process may forbid it
            self._may_capture = False
            print(f"algebra goes on without CUDA graphs: {error}", file=sys.stderr, flush=True)

    def _settings(self) -> Settings:
        return Settings(self.device)

    def forward(self, number: int, x: torch.Tensor) -> torch.Tensor:
        """One segment's, for autograd."""
        self._due = number
        with self._settings():
            if self._captured:
                out = self._graphs.forward(number)
            else:
                tape = None if number == STEM else self._tape
                out, self._tape = self.segments.forward(number, x, tape)
        return out.detach()  # kept by the tape, it must not keep the step before it

    def backward(
        self, number: int, d: torch.Tensor, count: int
    ) -> tuple[torch.Tensor | None, list[torch.Tensor | None]]:
        """One segment's, for autograd: the gradients of its input, and of its parameters, unless
        these get the mean of all ranks' when backward ends.

        Raises:
            RuntimeError: another forward pass, or this backward pass, has used up what is needed.
        """
        if (count, number) != (self.count, self._due):
            raise RuntimeError(
                "algebra=True keeps what backward needs of the last forward pass in training, for "
                "one backward pass: call backward before the next forward, and once"
            )
        self._due -= 1
        if self.shared and number == HEAD:
            self.shared.begin(self.segments.state.statistics)
        with self._settings():
            if self._captured:
                below = self._graphs.backward(number, d)
            else:
                below = self.segments.backward(number, d.contiguous(), self._tape)
            flat, found = self.segments.gradients(number)
            if self.shared and number != HEAD:
                self.shared.send(self.parameters[number], flat, found)
                found = [None] * len(found)
            if number == STEM:
                self._tape = None
            return below, found

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """None: a copy of the network makes a step of its own, if it trains."""
        return


class Settings:
    """While kernels run: no autocast, which the types here need none of, and cuDNN's fastest."""

    def __init__(self, device: torch.device) -> None:
        self._autocast = torch.autocast(device.type, enabled=False)
        self._benchmark = torch.backends.cudnn.benchmark

    def __enter__(self) -> None:
        self._autocast.__enter__()
        torch.backends.cudnn.benchmark = True

    def __exit__(self, *error: Any) -> None:
        torch.backends.cudnn.benchmark = self._benchmark
        self._autocast.__exit__(*error)


def places(model: nn.Module) -> list[int]:
    """Where in memory its parameters and statistics lie: kernels have noted it."""
    return [each.data_ptr() for each in (*model.parameters(), *model.buffers())]


def is_interpreted() -> bool:
    """Do kernels run in Triton's interpreter, which computes on the processor in any precision?"""
    return os.environ.get("TRITON_INTERPRET") == "1"


class FusedResNet(ResNet):
    """torchvision's network, with its weights. It trains by kernels where its images allow it;
    elsewhere by its own blocks, as plain.py has made them."""

    _step: Step | None = None
    _shared: Shared | None = None  # since DDP is around it

    @property
    def _ddp_params_and_buffers_to_ignore(self) -> list[str]:
        """DDP asks for it where it wraps this network itself; a public way has not come yet
        (pytorch/pytorch, issue 43690)."""
        return ours(self)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits [n, classes] of images [n, 3, h, w]."""
        dtype = self._dtype(images)
        # Also in evaluation: who trains with statistics that stay calls `net.eval()`.
        shared = self._sharing() if self.training or torch.is_grad_enabled() else None
        if not (self.training and fits(self, images, dtype)):
            scores = super().forward(images)
            if shared and scores.requires_grad:
                shared.share_later(scores)
            return scores
        if (
            self._step is None
            or self._step.segments.dtype != dtype
            or self._step.places != places(self)
        ):
            self._step = Step(self, dtype)
        self._step.shared = shared
        return self._step(images)

    def _sharing(self) -> Shared | None:
        """With whom this pass shares its gradients: DDP, which calls it, knows."""
        ddp = DDP._get_active_ddp_module()
        if ddp is None or ddp.module is not self or not left_by(ddp):
            return None
        if self._shared is None or not self._shared.is_for(ddp):
            self._shared = Shared(self, ddp)
        return self._shared if ddp.require_backward_grad_sync else None

    @staticmethod
    def _dtype(images: torch.Tensor) -> torch.dtype:
        kind = images.device.type
        on = torch.is_autocast_enabled(kind)
        return torch.get_autocast_dtype(kind) if on else images.dtype


def fits(model: nn.Module, images: torch.Tensor, dtype: torch.dtype) -> bool:
    """Can the kernels train on these images?"""
    n, channels, height, width = images.shape
    largest = n * (height // 2) * (width // 2) * model.conv1.out_channels
    known = dtype in (torch.float16, torch.bfloat16) and images.is_cuda or is_interpreted()
    return (
        known
        and (channels, width, height % HALVED) == (3, height, 0)
        and largest < MOST
        and not images.requires_grad  # gradients of images are not made
        and all(m.training for m in model.modules() if isinstance(m, nn.BatchNorm2d))
    )


def convert(model: nn.Module) -> nn.Module:
    """The same network, one that `plain.convert` has made, to train by kernels."""
    model.__class__ = FusedResNet
    return model
