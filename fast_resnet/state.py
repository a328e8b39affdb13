"""Buffers that a training step keeps between kernels.

There are only a few flat buffers, because few buffers need few launches: one memset clears all
sums, and one copy rounds all weights. The module's fp32 parameters do not move, because the
optimizer updates them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from fast_resnet import _compat

# All BatchNorms of a network share one fp32 table, [rows, channels of all BatchNorms]. A kernel
# takes the address of a BatchNorm's first column, and the length of a row.
ROWS = (
    "dbeta",  # gradients; in bn3 also the column sums of the gradient of the last ReLU's input
    "dgamma",
    "sum",  # sum of BatchNorm's input y over all pixels
    "squares",  # sum of y * y
    "total",  # sum of the output z = relu(bn(y)), over all pixels or every second one
    "constant",  # in dz = d A + z B + constant
    "gamma",
    "beta",
    "running_mean",
    "running_var",
    "scale",  # this row and the next three: only if the statistics come from the Gram matrix
    "shift",
    "mean",
    "rstd",
)
CLEARED = ROWS.index("gamma")  # each step clears the rows before this one, then adds to them


@dataclass
class Norm:
    """A BatchNorm's columns of the table."""

    table: torch.Tensor  # [rows, C], a view
    stride: int  # elements from one row to the next
    eps: float
    momentum: float

    def row(self, name: str) -> torch.Tensor:
        """Return the row [C] with this name from `ROWS`."""
        return self.table[ROWS.index(name)]


class State:
    """The parameters of a torchvision bottleneck ResNet, in the form that a training step uses.

    modules: the network's convolutions and BatchNorms from input to output, and the last layer.

    These dictionaries have modules as keys: `weight` and `weight_gradient`, in dtype, are views of
    flat buffers; `norms` contains the BatchNorms. The first layer's weights have four input
    channels. Gradients of vectors (gamma, beta, the last bias) stay in fp32.
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
        self.statistics = self._table[at : at + 2]  # contiguous: one message sends it
        self.norms: dict[nn.Module, Norm] = {}
        for module in norms:
            columns = slice(begin, begin + module.num_features)
            begin, self._at[module] = columns.stop, columns
            norm = Norm(self._table[:, columns], width, module.eps, module.momentum)
            self.norms[module] = norm
            for name in ("running_mean", "running_var"):
                # .data has a separate version counter. Otherwise autograd would treat an update of
                # one layer's statistics as a change of every layer's.
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
        self.weight = {m: self._view(m, self._weights[self._at[m]]) for m in modules}
        self.weight_gradient = {m: self._view(m, self._gradients[self._at[m]]) for m in modules}
        later = [m for m in modules if m is not self.first]
        self._sources = [m.weight.data for m in later]
        self._halves = [self.weight[m] for m in later]

    def _view(self, module: nn.Module, flat: torch.Tensor) -> torch.Tensor:
        """View a part of a flat buffer with the shape and memory order of a weight."""
        if module is self.first:  # [64, 4, 7, 7], channels last
            n, _, height, width = module.weight.shape
            return flat.view(n, height, width, 4).permute(0, 3, 1, 2)
        return flat.as_strided(module.weight.shape, module.weight.stride(), flat.storage_offset())

    def begin(self) -> None:
        """Prepare a step: clear the sums, round the weights, and count the batch."""
        self._table[:CLEARED].zero_()
        _compat.copy_all(self._vector_rows, self._vectors)
        self.weight[self.first][:, :3].copy_(self.first.weight.data)
        _compat.copy_all(self._halves, self._sources)
        _compat.add_one(self._counters)

    def gradients(self, modules: list[nn.Module]) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Return the gradients of consecutive modules: one flat fp32 tensor, and views of it. Both
        use new memory, so a parameter can keep its gradient after the step."""
        norms = [self._at[m] for m in modules if m in self.norms]
        weighted = [self._at[m] for m in modules if m in self.weight]
        vectors = self.bias_gradient
        if norms:
            vectors = self._table[:2, norms[0].start : norms[-1].stop]
        weights = self._gradients[weighted[0].start : weighted[-1].stop]
        sizes = [weights.numel(), vectors.numel()]
        flat = torch.empty(sum(sizes), device=self.device)
        flat_weights, flat_vectors = flat.split(sizes)
        flat_weights.copy_(weights)
        flat_vectors.view(vectors.shape).copy_(vectors)
        # Two calls create all views: one by one, they would take longer than launching a segment.
        pieces = iter(flat_weights.split([at.stop - at.start for at in weighted]))
        rows = flat_vectors.split([at.stop - at.start for at in norms] * 2 or sizes[1])
        by_norm = iter(zip(rows[len(norms) :], rows))  # dgamma, dbeta: the order of weight, bias
        views = []
        for module in modules:
            if module in self.norms:
                views += next(by_norm)
            elif module is self.first:
                views.append(self._view(module, next(pieces))[:, :3])
            else:
                views.append(self._view(module, next(pieces)))
        return flat, views + [flat_vectors] * (self.last in modules)
