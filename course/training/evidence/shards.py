"""What a rank keeps of a network that is shared out, and when it gathers the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch

GATHER, SCATTER = ("allgather", "all_gather"), ("reduce_scatter",)


def part(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank keeps of a tensor: of a DTensor its shard, of any other all.

    Nothing is sent, so that a rank may ask alone. A DTensor is known by its method: to import its
    class would take a script that has none of them a second.
    """
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def size(tensors: Iterable[Any]) -> int:
    """Bytes that this rank keeps of tensors; what is none counts nothing."""
    parts = [part(tensor) for tensor in tensors if isinstance(tensor, torch.Tensor)]
    return sum(tensor.numel() * tensor.element_size() for tensor in parts)


def placed(weights: Iterable[torch.Tensor]) -> dict[str, Any]:
    """How weights lie over the ranks.

    placements: of how many weights each, as "Shard(dim=0)", or "Replicate(), Shard(dim=0)" where
    the mesh has two dimensions, or "whole" for one that is no DTensor. mesh: its ranks a dimension.
    among: which ranks these are.
    """
    counts, mesh, among = Counter(), [], []
    for weight in weights:
        spread = getattr(weight, "placements", None)
        counts["whole" if spread is None else ", ".join(map(repr, spread))] += 1
        if spread is not None:
            mesh, among = [*weight.device_mesh.shape], weight.device_mesh.mesh.flatten().tolist()
    return {"placements": dict(counts), "mesh": mesh, "among": among}


class Order:
    """In which order a step gathers weights and computes: what is gathered ahead, and how often."""

    def __init__(self) -> None:
        self._gathers: dict[str, list[int]] = {}
        self._computed: dict[str, bool] = {}
        self._types: dict[str, Counter[str]] = {"gathered": Counter(), "reduced": Counter()}

    def sent(self, phase: str, name: str, first: Any) -> None:
        """A collective of PyTorch's, by its operator's name, and the first thing it was given."""
        tensor = first[0] if isinstance(first, list | tuple) and first else first
        of_type = str(getattr(tensor, "dtype", "")).removeprefix("torch.")
        if any(word in name for word in SCATTER):
            self._types["reduced"][of_type] += 1
        if any(word in name for word in GATHER):
            self._types["gathered"][of_type] += 1
            stretches = self._gathers.setdefault(phase, [])
            if self._computed.get(phase, True):
                stretches.append(0)
            stretches[-1] += 1
            self._computed[phase] = False

    def computed(self, phase: str) -> None:
        """A convolution or a product."""
        self._computed[phase] = True

    def evidence(self) -> dict[str, Any]:
        """For the record; {} where nothing was gathered.

        gathers: by phase, how many all-gathers lay between two stretches of computing, in order.
        gathered_types, reduced_types: the formats in which they, and reduce-scatters, went.
        """
        if not self._gathers:
            return {}
        types = {f"{name}_types": dict(counter) for name, counter in self._types.items()}
        return {"gathers": self._gathers, **types}
