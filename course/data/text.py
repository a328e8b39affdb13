"""A text as tokens: sequences to train a GPT on, from a novel that is part of the course.

emma.toml next to the text has its source, licence and hash.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from course.data.loader import EpochSampler

if TYPE_CHECKING:
    from course.config import Config

TEXT = Path(__file__).with_name("emma.txt")
PARTS = re.compile(r" ?\w+|\s|[^\w\s]")  # of a text: all its characters are in one of them
VAL_SHARE = 0.1  # of the tokens: the novel's end


def read_tokens() -> torch.Tensor:
    """Return the text's tokens: a number for each word and sign, 0 for the most frequent one.

    GPT-2's own tokens are parts of words, which were learnt from more text than the course has.
    These are fewer, 10,232 of 50,257: the others never occur, but take the same time and memory.
    """
    words = PARTS.findall(TEXT.read_text(encoding="utf-8"))
    ids = {word: number for number, (word, _) in enumerate(Counter(words).most_common())}
    return torch.tensor([ids[word] for word in words])


class Sequences(Dataset):
    """The parts of a text that follow each other, each of `context` tokens.

    Batches are (inputs, targets), both of shape (N, context): a target is the token after its
    input. They are on the device of the tokens, so that no step waits for a copy.
    """

    def __init__(self, tokens: torch.Tensor, context: int) -> None:
        self.tokens, self.context = tokens, context

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.context

    def __getitems__(self, numbers: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        device = self.tokens.device
        starts = torch.tensor(numbers).to(device, non_blocking=True) * self.context
        places = starts[:, None] + torch.arange(self.context, device=device)
        return self.tokens[places], self.tokens[places + 1]


class TextSets(NamedTuple):
    """The sequences to train on, and those to validate on."""

    train: Sequences
    val: Sequences


def text_sets(cfg: Config, device: torch.device) -> TextSets:
    """Return the sequences of a config.

    Raises:
        ValueError: the vocabulary is smaller than the text's, the context longer than a part of the
            text, or the batch larger than the sequences to train on.
    """
    tokens = read_tokens()
    if (used := int(tokens.max()) + 1) > cfg.vocabulary:
        raise ValueError(
            f"vocabulary={cfg.vocabulary}: the text has {used} different tokens, and each needs an "
            f"id: choose {used} or more"
        )
    split = round(len(tokens) * (1 - VAL_SHARE))
    if (longest := len(tokens) - split - 1) < cfg.context:
        raise ValueError(
            f"context={cfg.context}: the text to validate on has {longest + 1} tokens: choose "
            f"{longest} or less"
        )
    parts = tokens.to(device).tensor_split([split])
    sets = TextSets(*(Sequences(part, cfg.context) for part in parts))
    if len(sets.train) < cfg.batch_size:
        raise ValueError(
            f"batch_size={cfg.batch_size}: the text has {len(sets.train)} sequences of "
            f"context={cfg.context} tokens to train on: lower one of the two"
        )
    return sets


def text_loaders(
    sets: TextSets, cfg: Config, share: int, sampler: Sampler, val_sampler: Iterable[int]
) -> tuple[DataLoader, DataLoader]:
    """Return the batches of a rank: to train on, each of `share` sequences, and to validate on.

    The latter are `cfg.val_steps` times `share` sequences, if there are as many, in batches of the
    size of a micro-batch, because they are computed at once.

    Raises:
        ValueError: there are fewer sequences to validate on than ranks that share them.
    """
    if cfg.val_steps and len(sets.val) < (copies := cfg.batch_size // share):
        raise ValueError(
            f"context={cfg.context}: the text has {len(sets.val)} such sequences to validate on, "
            f"and {copies} ranks share them: lower context, or set val_steps=0"
        )
    random = torch.Generator().manual_seed(cfg.seed)  # unused, but it leaves PyTorch's alone
    options = {"collate_fn": lambda batch: batch, "generator": random}
    indices = [*islice(val_sampler, None if cfg.val_steps < 0 else cfg.val_steps * share)]
    train = EpochSampler(sampler, share * cfg.steps, cfg.epochs)
    return (
        DataLoader(sets.train, share, sampler=train, **options),
        DataLoader(sets.val, cfg.micro_batch or share, sampler=indices, **options),
    )
