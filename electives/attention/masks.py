"""A mask of packed documents with a sliding window, as FlexAttention takes it."""

from __future__ import annotations

from collections.abc import Callable

import torch

Mask = Callable[..., torch.Tensor]


def in_window(
    document: torch.Tensor, window: int, query: torch.Tensor, key: torch.Tensor
) -> torch.Tensor:
    """Return whether a query may attend to a key.

    It may if the key is of the same document, not later than the query, and one of the last
    `window` tokens, of which the query is the last.

    Args:
        document: the number of the document of each token.
        query, key: positions, as tensors of whole numbers.
    """
    return (document[query] == document[key]) & (key <= query) & (query - key < window)


def pack(lengths: list[int]) -> torch.Tensor:
    """Return the number of the document of each token, for documents of these lengths."""
    return torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
