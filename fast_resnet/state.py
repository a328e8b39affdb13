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
        self._at: dict[nn.Module, slice] = {}  # a weight in the flat buffers
        self._columns: dict[nn.Module, slice] = {}  # a BatchNorm, or the last bias, in the table
        norms = [m for m in modules if isinstance(m, nn.BatchNorm2d)]
        self._counters = [m.num_batches_tracked for m in norms]
        self._arrange_norms(norms)
        self._arrange_weights([m for m in modules if isinstance(m, nn.Conv2d)], dtype)

    def _arrange_norms(self, norms: list[nn.BatchNorm2d]) -> None:
        begin = 0
        for module in [*norms, self.last]:
            size = self.last.out_features if module is self.last else module.num_features
            self._columns[module] = slice(begin, begin + size)
            begin += size
        width = -(-begin // 16) * 16  # because Triton reads faster if it knows this
        self._table = torch.zeros(len(ROWS), width, device=self.device)
        at = ROWS.index("running_mean")
        self.statistics = self._table[at : at + 2]  # contiguous: one message sends it
        self.norms: dict[nn.Module, Norm] = {}
        for module in norms:
            columns = self._table[:, self._columns[module]]
            norm = Norm(columns, width, module.eps, module.momentum)
            self.norms[module] = norm
            for name in ("running_mean", "running_var"):
                # .data has a separate version counter. Otherwise autograd would treat an update of
                # one layer's statistics as a change of every layer's.
                setattr(module, name, norm.row(name).copy_(getattr(module, name)).data)
        self.bias_gradient = self._table[ROWS.index("dbeta"), self._columns[self.last]]
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
        at = [self._at[m] for m in modules if m in self._at]
        columns = [self._columns[m] for m in modules if m in self._columns]
        weights = self._gradients[at[0].start : at[-1].stop]
        vectors = self._table[:2, columns[0].start : columns[-1].stop]
        flat = torch.empty(weights.numel() + vectors.numel(), device=self.device)
        flat_weights, flat_vectors = flat.split([weights.numel(), vectors.numel()])
        flat_weights.copy_(weights)
        flat_vectors.view(vectors.shape).copy_(vectors)
        # Two calls create most views: one by one, they would take longer than launching a graph.
        pieces = iter(flat_weights.split([part.stop - part.start for part in at]))
        rows = flat_vectors.split([part.stop - part.start for part in columns] * 2)
        by_norm = zip(rows[len(columns) :], rows)  # dgamma, dbeta: the order of weight, bias
        views = []
        for module in modules:
            if module in self.norms:
                views += next(by_norm)
            else:
                views.append(self._view(module, next(pieces)))
        if modules[0] is self.first:
            views[0] = views[0][:, :3]
        return flat, views + [rows[len(columns) - 1]] * (modules[-1] is self.last)
