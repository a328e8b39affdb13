"""What a training step keeps between kernels: parameters, momenta and gradients in flat buffers.

Few buffers mean few launches: one memset clears all sums, one kernel updates all weights. The
module's own parameters become views of them, so that it can be saved or evaluated as ever.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field

import torch
from torch import nn

from course.training.algebra.pixels import pad_channels


class Workspace:
    """fp32 room that one memset clears each step: sums, and gradients that atomics add to."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.values = torch.zeros(size, device=device)
        self._used = 0
        self._named: dict[Hashable, torch.Tensor] = {}

    def take(self, size: int) -> torch.Tensor:
        """A piece [size] of its own."""
        piece = self.values[self._used : self._used + size]
        self._used += (size + 3) // 4 * 4  # 16 bytes: Triton then loads whole vectors
        assert self._used <= self.values.numel()
        return piece

    def named(self, name: Hashable, size: int) -> torch.Tensor:
        """The piece of this name, taken on first use."""
        if name not in self._named:
            self._named[name] = self.take(size)
        return self._named[name]


@dataclass
class Norm:
    """A BatchNorm's tensors, all fp32. [C] each, but for sums and gradients: [2 C]."""

    channels: int
    eps: float
    momentum: float
    gamma: torch.Tensor
    beta: torch.Tensor
    running_mean: torch.Tensor
    running_var: torch.Tensor
    gradients: torch.Tensor  # of beta, then of gamma
    sums: torch.Tensor  # of y, then of y*y; unused where the statistics come by algebra
    scale: torch.Tensor = field(init=False)  # these four only where they do
    shift: torch.Tensor = field(init=False)
    mean: torch.Tensor = field(init=False)
    rstd: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        for name in ("scale", "shift", "mean", "rstd"):
            setattr(self, name, torch.zeros_like(self.beta))


def channels_first(values: torch.Tensor) -> torch.Tensor:
    """A convolution's weights, [N, h, w, K] in memory, in torch's order [N, K, h, w]: a view."""
    return values.permute(0, 3, 1, 2) if values.dim() == 4 else values


class State:
    """The parameters of a torchvision bottleneck ResNet, as one training step wants them.

    Weights: `weights` and `momenta` fp32, `half_weights` and `half_gradients` in `dtype`, all flat.
    Vectors (gamma, beta, the last bias): `vectors`, `vector_momenta`, `vector_gradients`, fp32.
    By module: `weight` and `weight_gradient` in dtype, `rounded` (1x1 only: the weights that the
    convolution really uses, as fp32 [N, K]), and `norms`.
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        self.device = next(model.parameters()).device
        self.convs = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
        self.norms: dict[nn.Module, Norm] = {}
        self._flatten_weights(model, dtype)
        self._flatten_vectors(model)

    def _flatten_weights(self, model: nn.Module, dtype: torch.dtype) -> None:
        model.conv1.weight.data = pad_channels(model.conv1.weight.data)
        modules = [*self.convs, model.fc]
        sizes = [(m.weight.numel() + 7) // 8 * 8 for m in modules]  # 16 bytes in half precision
        self.weights = torch.zeros(sum(sizes), device=self.device)
        self.momenta = torch.zeros_like(self.weights)
        self.half_weights = torch.zeros_like(self.weights, dtype=dtype)
        self.half_gradients = torch.zeros_like(self.half_weights)
        self.weight: dict[nn.Module, torch.Tensor] = {}
        self.weight_gradient: dict[nn.Module, torch.Tensor] = {}
        places: dict[nn.Module, slice] = {}
        begin = 0
        for module, size in zip(modules, sizes):
            w = module.weight.data
            values = w.permute(0, 2, 3, 1).contiguous() if w.dim() == 4 else w
            place = places[module] = slice(begin, begin + w.numel())
            self.weights[place] = values.flatten()
            for flat, views in (
                (self.half_weights, self.weight),
                (self.half_gradients, self.weight_gradient),
            ):
                views[module] = channels_first(flat[place].view(values.shape))
            module.weight.data = channels_first(self.weights[place].view(values.shape))
            begin += size
        model.conv1.weight.data = model.conv1.weight.data[:, :3]
        self.half_weights.copy_(self.weights)
        self.rounded_weights = self.half_weights.float()
        self.rounded = {
            m: self.rounded_weights[places[m]].view(m.out_channels, m.in_channels)
            for m in self.convs
            if m.kernel_size == (1, 1)
        }

    def _flatten_vectors(self, model: nn.Module) -> None:
        norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
        channels = sum(m.num_features for m in norms)
        size = 2 * channels + model.fc.out_features
        self.vectors = torch.zeros(size, device=self.device)
        self.vector_momenta = torch.zeros_like(self.vectors)
        # 4 sums a channel at most, and those of blocks' inputs, which are 4096 wide at most.
        room = 8 * channels + 20 * 4096 + size + 8
        self.workspace = Workspace(room, self.device)
        self.vector_gradients = self.workspace.take(size)
        self.overflow = self.workspace.take(1)
        begin = 0
        for module in norms:
            middle, end = begin + module.num_features, begin + 2 * module.num_features
            self.norms[module] = self._norm(module, begin, middle, end)
            begin = end
        self.vectors[begin:] = model.fc.bias.data
        model.fc.bias.data = self.vectors[begin:]
        self.bias, self.bias_gradient = self.vectors[begin:], self.vector_gradients[begin:]

    def _norm(self, module: nn.BatchNorm2d, begin: int, middle: int, end: int) -> Norm:
        self.vectors[begin:middle], self.vectors[middle:end] = module.bias.data, module.weight.data
        module.bias.data, module.weight.data = self.vectors[begin:middle], self.vectors[middle:end]
        return Norm(
            channels=module.num_features,
            eps=module.eps,
            momentum=module.momentum,
            gamma=module.weight.data,
            beta=module.bias.data,
            running_mean=module.running_mean,
            running_var=module.running_var,
            gradients=self.vector_gradients[begin:end],
            sums=self.workspace.take(2 * module.num_features),
        )

    def clear(self) -> None:
        """Before a step: zero the sums, and round the weights anew."""
        self.workspace.values.zero_()
        self.rounded_weights.copy_(self.half_weights)
