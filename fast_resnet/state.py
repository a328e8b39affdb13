"""What a training step keeps between kernels, in few flat buffers.

Few buffers mean few launches: one memset clears all sums, one copy rounds all weights. The module's
own parameters stay where they are: they are the optimizer's, in fp32.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from fast_resnet import _compat

# A network's BatchNorms share one table in fp32, [rows, channels of all BatchNorms]. A kernel gets
# the address of a BatchNorm's first column, and the length of a row.
ROWS = (
    "dbeta",  # gradients; also the column sums of the gradient behind the block's last ReLU
    "dgamma",
    "sum",  # over all pixels, of BatchNorm's input y
    "squares",  # of y * y
    "total",  # of its output z = relu(bn(y)), or of every second pixel of it
    "total_squares",
    "constant",  # of dz = d A + z B + constant
    "gamma",
    "beta",
    "running_mean",
    "running_var",
    "scale",  # these four only where the statistics come from the Gram matrix
    "shift",
    "mean",
    "rstd",
)
CLEARED = ROWS.index("gamma")  # rows that a step adds to, from 0


@dataclass
class Norm:
    """A BatchNorm's columns of the table."""

    table: torch.Tensor  # [rows, C], a view
    stride: int  # elements from one row to the next
    eps: float
    momentum: float

    def row(self, name: str) -> torch.Tensor:
        """One of `ROWS` [C]."""
        return self.table[ROWS.index(name)]


class State:
    """The parameters of a torchvision bottleneck ResNet, as one training step wants them.

    modules: its convolutions and BatchNorms from input to output, and the last layer.

    By module: `weight` and `weight_gradient` in dtype, views of flat buffers; `rounded` (1x1 only:
    the weights that the convolution uses, in fp32 [N, K]); and `norms`. The first layer's weights
    have four input channels. Gradients of vectors (gamma, beta, the last bias) stay fp32.
    """

    def __init__(self, modules: list[nn.Module], dtype: torch.dtype) -> None:
        self.first, self.last = modules[0], modules[-1]
        self.device = self.first.weight.device
        self._at: dict[nn.Module, slice] = {}  # in the flat buffers, or in the table's rows
        norms = [m for m in modules if isinstance(m, nn.BatchNorm2d)]
        self._counters = [m.num_batches_tracked for m in norms]
        self._arrange_norms(norms)
        self._arrange_weights([m for m in modules if isinstance(m, nn.Conv2d)], dtype)
        self.bias_gradient = torch.zeros(self.last.out_features, device=self.device)

    def _arrange_norms(self, norms: list[nn.BatchNorm2d]) -> None:
        width, begin = sum(m.num_features for m in norms), 0
        self._table = torch.zeros(len(ROWS), width, device=self.device)
        at = ROWS.index("running_mean")
        self.statistics = self._table[at : at + 2]  # in one piece: ranks share it
        self.norms: dict[nn.Module, Norm] = {}
        for module in norms:
            columns = slice(begin, begin + module.num_features)
            begin, self._at[module] = columns.stop, columns
            norm = Norm(self._table[:, columns], width, module.eps, module.momentum)
            self.norms[module] = norm
            for name in ("running_mean", "running_var"):
                # As data, which count their changes alone: autograd would take another layer's
                # for theirs.
                setattr(module, name, norm.row(name).copy_(getattr(module, name)).data)
        self._vectors = [p.data for m in norms for p in (m.weight, m.bias)]
        self._vector_rows = [n.row(k) for n in self.norms.values() for k in ("gamma", "beta")]

    def _arrange_weights(self, convs: list[nn.Conv2d], dtype: torch.dtype) -> None:
        modules, begin = [*convs, self.last], 0
        for module in modules:
            size = module.weight.numel() // 3 * 4 if module is self.first else module.weight.numel()
            self._at[module] = slice(begin, begin + size)
            begin += size
        self._weights = torch.zeros(begin, device=self.device, dtype=dtype)
        self._gradients = torch.zeros_like(self._weights)
        self._rounded = torch.zeros(begin, device=self.device)
        self.weight = {m: self._view(m, self._weights[self._at[m]]) for m in modules}
        self.weight_gradient = {m: self._view(m, self._gradients[self._at[m]]) for m in modules}
        others = [m for m in modules if m is not self.first]
        self._sources = [m.weight.data for m in others]
        self._halves = [self.weight[m] for m in others]
        self.rounded = {
            m: self._rounded[self._at[m]].view(m.out_channels, m.in_channels)
            for m in convs
            if m.kernel_size == (1, 1)
        }

    def _view(self, module: nn.Module, flat: torch.Tensor) -> torch.Tensor:
        """A piece of a flat buffer in the shape of a weight, and in its order in memory."""
        if module is self.first:  # [64, 4, 7, 7], channels last
            n, _, height, width = module.weight.shape
            return flat.view(n, height, width, 4).permute(0, 3, 1, 2)
        return flat.as_strided(module.weight.shape, module.weight.stride(), flat.storage_offset())

    def begin(self) -> None:
        """Before a step: clear the sums, round the weights, and count the batch."""
        self._table[:CLEARED].zero_()
        _compat.copy_all(self._vector_rows, self._vectors)
        self.weight[self.first][:, :3].copy_(self.first.weight.data)
        _compat.copy_all(self._halves, self._sources)
        self._rounded.copy_(self._weights)
        _compat.add_one(self._counters)

    def gradients(self, modules: list[nn.Module]) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Those of the parameters of modules that follow each other, and the flat piece that they
        lie in: fp32, in memory of its own, so that a parameter may keep its gradient."""
        norms = [self._at[m] for m in modules if m in self.norms]
        others = [self._at[m] for m in modules if m in self.weight]
        vectors = self.bias_gradient
        if norms:
            vectors = self._table[:2, norms[0].start : norms[-1].stop]
        weights = self._gradients[others[0].start : others[-1].stop]
        sizes = [weights.numel(), vectors.numel()]
        flat = torch.empty(sum(sizes), device=self.device)
        own_weights, own_vectors = flat.split(sizes)
        own_weights.copy_(weights)
        own_vectors.view(vectors.shape).copy_(vectors)
        # All views by two calls: one by one they would take longer than the launch of a segment.
        pieces = iter(own_weights.split([at.stop - at.start for at in others]))
        rows = own_vectors.split([at.stop - at.start for at in norms] * 2 or sizes[1])
        by_norm = iter(zip(rows[len(norms) :], rows))  # dgamma, dbeta: as weight, bias
        views = []
        for module in modules:
            if module in self.norms:
                views += next(by_norm)
            elif module is self.first:
                views.append(self._view(module, next(pieces))[:, :3])
            else:
                views.append(self._view(module, next(pieces)))
        return flat, views + [own_vectors] * (self.last in modules)
