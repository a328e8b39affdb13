"""What a training step keeps between kernels: rounded weights, sums and gradients, in flat buffers.

Few buffers mean few launches: one memset clears all sums, one kernel gives out a layer's gradients.
The module's own parameters stay where they are: they are the optimizer's, in 32 bits.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field

import torch
from torch import nn


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


class State:
    """The parameters of a torchvision bottleneck ResNet, as one training step wants them.

    By module: `weight` and `weight_gradient` in dtype, views of flat buffers; `rounded` (1x1 only:
    the weights that the convolution really uses, as fp32 [N, K]); and `norms`. The first layer's
    have four input channels. Gradients of vectors (gamma, beta, the last bias) stay fp32.
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        self.device = next(model.parameters()).device
        self.first, self.last = model.conv1, model.fc
        self._norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
        self._counters = [m.num_batches_tracked for m in self._norms]
        self._at: dict[nn.Module, slice] = {}  # in the flat buffers of weights, or of vectors
        self._lay_out_weights([m for m in model.modules() if isinstance(m, nn.Conv2d)], dtype)
        self._lay_out_vectors()

    def _lay_out_weights(self, convs: list[nn.Conv2d], dtype: torch.dtype) -> None:
        modules, begin = [*convs, self.last], 0
        for module in modules:
            size = module.weight.numel() // 3 * 4 if module is self.first else module.weight.numel()
            self._at[module] = slice(begin, begin + size)
            begin += (size + 7) // 8 * 8  # 16 bytes in half precision
        self.half_weights = torch.zeros(begin, device=self.device, dtype=dtype)
        self.half_gradients = torch.zeros_like(self.half_weights)
        self._rounded_weights = torch.zeros(begin, device=self.device)
        self.weight = {m: self._of(m, self.half_weights[self._at[m]]) for m in modules}
        self.weight_gradient = {m: self._of(m, self.half_gradients[self._at[m]]) for m in modules}
        self._rounded = [m.weight.data for m in modules if m is not self.first]
        self._halves = [self.weight[m] for m in modules if m is not self.first]
        self.rounded = {
            m: self._rounded_weights[self._at[m]].view(m.out_channels, m.in_channels)
            for m in convs
            if m.kernel_size == (1, 1)
        }

    def _of(self, module: nn.Module, flat: torch.Tensor) -> torch.Tensor:
        """A piece of a flat buffer in the shape of a weight, and in its order in memory."""
        if module is self.first:  # [64, 4, 7, 7], channels last
            n, _, height, width = module.weight.shape
            return flat.view(n, height, width, 4).permute(0, 3, 1, 2)
        return flat.as_strided(module.weight.shape, module.weight.stride(), flat.storage_offset())

    def _lay_out_vectors(self) -> None:
        channels = sum(m.num_features for m in self._norms)
        size = 2 * channels + self.last.out_features
        # Sums of y and of y*y for each norm; those of blocks' inputs, which are convolutions', too.
        convs = [m for m in self.weight if isinstance(m, nn.Conv2d)]
        inputs = sum(3 * m.in_channels + m.out_channels + 16 for m in convs)
        self.workspace = Workspace(2 * channels + size + inputs + 4096, self.device)
        self.vector_gradients = self.workspace.take(size)
        self.norms: dict[nn.Module, Norm] = {}
        self.statistics = torch.empty(2 * channels, device=self.device)  # one piece: ranks share it
        begin = 0
        for module in self._norms:
            self._at[module] = slice(begin, begin + 2 * module.num_features)
            self._move_statistics(module, self.statistics[self._at[module]])
            self.norms[module] = self._norm(module, self.vector_gradients[self._at[module]])
            begin += 2 * module.num_features
        self._bias_at = slice(begin, size)
        self.bias, self.bias_gradient = self.last.bias.data, self.vector_gradients[self._bias_at]

    @staticmethod
    def _move_statistics(module: nn.BatchNorm2d, place: torch.Tensor) -> None:
        """The module's running mean and variance, with their values, to a place [2 C].

        As data, which count their changes alone: autograd would take another layer's for theirs.
        """
        for name, piece in zip(("running_mean", "running_var"), place.chunk(2)):
            setattr(module, name, piece.copy_(getattr(module, name)).data)

    def _norm(self, module: nn.BatchNorm2d, gradients: torch.Tensor) -> Norm:
        return Norm(
            channels=module.num_features,
            eps=module.eps,
            momentum=module.momentum,
            gamma=module.weight.data,
            beta=module.bias.data,
            running_mean=module.running_mean,
            running_var=module.running_var,
            gradients=gradients,
            sums=self.workspace.take(2 * module.num_features),
        )

    @property
    def known(self) -> set[nn.Module]:
        """The modules that have parameters."""
        return {*self.weight, *self.norms}

    def begin(self) -> None:
        """Before a step: zero the sums, round the weights anew, and count the batch."""
        self.workspace.values.zero_()
        self.weight[self.first][:, :3].copy_(self.first.weight.data)
        torch._foreach_copy_(self._halves, self._rounded)
        self._rounded_weights.copy_(self.half_weights)
        torch._foreach_add_(self._counters, 1)

    def gradients(self, modules: list[nn.Module]) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Those of the parameters of modules that follow each other, and the flat piece that they
        lie in: fp32, in memory of its own, so that a parameter may keep its gradient."""
        norms = [m for m in modules if m in self.norms]
        others = [m for m in modules if m in self.weight]
        weights = slice(self._at[others[0]].start, self._at[others[-1]].stop)
        ends = [self._at[m] for m in norms] + [self._bias_at] * (self.last in others)
        vectors = slice(ends[0].start, ends[-1].stop)
        sizes = weights.stop - weights.start, vectors.stop - vectors.start
        flat = torch.empty(sum(sizes), device=self.device)
        from_weights, from_vectors = flat.split(sizes)
        from_weights.copy_(self.half_gradients[weights])
        from_vectors.copy_(self.vector_gradients[vectors])
        found = []
        for module in modules:
            if module in self.norms:
                at = self._at[module]
                both = from_vectors[at.start - vectors.start : at.stop - vectors.start]
                found += [*reversed(both.chunk(2))]  # beta's comes first, and gamma is the weight
                continue
            at = self._at[module]
            piece = from_weights[at.start - weights.start : at.stop - weights.start]
            found.append(self._of(module, piece)[:, : module.weight.shape[1]])
        return flat, found + [from_vectors[-self.last.out_features :]] * (self.last in others)
