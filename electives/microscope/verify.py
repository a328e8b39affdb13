"""Checks of the lab's two functions: each returns its evidence or asserts what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from string import ascii_lowercase
from typing import Any

import pandas as pd
import torch

from course.lab import results
from electives.microscope.kernel_names import counted_kernels, inner_name, labelled_examples
from electives.microscope.sparsity import Prune, prune

Function = Callable[..., Any]
MIN_ACCURACY = 0.9
TENSOR_CORE_WORDS = ("s884", "s1688", "s16816", "tensor16x8x16", "tensorop", "warpgroup", "nvjet")


def check_examples(function: Function) -> str:
    """Check the function with the names that the lab shows."""
    examples = labelled_examples()
    for letter in "" if function("") else ascii_lowercase:
        one_letter = f"the letter {letter} alone decides: a group of one word needs a comma"
        assert not function(letter), f'{one_letter}, ("nvjet",)'
        for word in filter(function, TENSOR_CORE_WORDS):
            assert function(f"{word} {letter}"), f'{one_letter}, ("ffma",)'
    for example in examples.itertuples():
        uses = example.truth == "used"
        assert bool(function(example.kernel)) == uses, (
            f"{inner_name(example.kernel)} uses {'them' if uses else 'none'}: {example.why}"
        )
    return f"right about all {len(examples)} names, from Volta's to Hopper's"


def check_counted_kernels(function: Function) -> str:
    """Check the function with kernels for which a hardware counter showed the truth."""
    table = counted_kernels()
    answers = pd.Series([bool(function(name)) for name in table["kernel"]])
    used = table["truth"].eq("used")
    accuracy = (answers == used).mean()
    alarms, missed = table["kernel"][answers & ~used], table["kernel"][~answers & used]
    evidence = (
        f"right about {accuracy:.0%} of {len(table)} kernels that a counter judged on an H100; "
        f"{_count(alarms, 'false alarm')}; {_count(missed, 'missed kernel')}"
    )
    too = "long miss kernels" if len(missed) > len(alarms) else "short match too much"
    assert accuracy >= MIN_ACCURACY, f"{evidence}. Words that are too {too}"
    return evidence


def _count(kernels: pd.Series, noun: str) -> str:
    """Count kernels, with the name of the first: "2 missed kernels, for example gemm…"."""
    text = f"{len(kernels)} {noun}{'s' if len(kernels) != 1 else ''}"
    return f"{text}, for example {kernels.iloc[0][:60]}…" if len(kernels) else text


def check_pruned(function: Prune) -> str:
    """Check which numbers of weights remain, for several shapes and types."""
    generator = torch.Generator().manual_seed(0)
    for shape in ((6, 8), (16, 16), (5, 20), (1, 4)):
        _check_pruned(function, torch.randn(shape, generator=generator))
    whole = torch.randperm(96, generator=generator) * torch.tensor([1, -1]).repeat(48)
    _check_pruned(function, whole.reshape(8, 12).bfloat16())  # all magnitudes differ
    return "right: in each four neighbours of a row, the two largest magnitudes remain"


def _check_pruned(function: Prune, weight: torch.Tensor) -> None:
    result = results.call(function, weight)
    assert isinstance(result, torch.Tensor) and result.shape == weight.shape, (
        f"expected a tensor of shape {(*weight.shape,)}, like the weight: reshape at the end"
    )
    assert result.dtype == weight.dtype, (
        f"the copy of a weight in {weight.dtype} is {result.dtype}: keep its type"
    )
    expected, kept = prune(weight), result != 0
    if torch.equal(result, expected):
        return
    mistakes = {
        "the two smallest magnitudes remain, not the largest": weight - expected,
        "-3 is larger than 2 in magnitude: compare absolute values": _keep(weight),
        "the four neighbours are in a column: take them from a row": prune(weight.t()).t(),
        "it returns which numbers remain: multiply the weight by that": (expected != 0).float(),
        "it returns magnitudes: keep each number's sign": expected.abs(),
    }
    for hint, wrong in mistakes.items():
        assert not torch.equal(result.float(), wrong.float()), hint
    assert kept.sum() == weight.numel() // 2, (
        f"{int(kept.sum())} of {weight.numel()} numbers remain, expected half of them"
    )
    counts = kept.reshape(-1, 4).sum(dim=1)
    assert (counts == 2).all(), (
        f"of the {len(counts)} groups of four, one keeps {int(counts[counts != 2][0])} numbers: "
        f"choose two in each group, not half of a row or of the weight"
    )
    at = int((result != expected).reshape(-1, 4).any(dim=1).nonzero()[0])
    old, new, right = (four.reshape(-1, 4)[at].tolist() for four in (weight, result, expected))
    raise AssertionError(
        f"each group of a weight of shape {(*weight.shape,)} keeps two numbers, but {old} becomes "
        f"{new}, expected {right}"
    )


def _keep(weight: torch.Tensor) -> torch.Tensor:
    """Return the weight with the two largest numbers of each four, by sign."""
    fours = weight.reshape(-1, 4)
    kept = fours.topk(2, dim=1).indices
    return torch.zeros_like(fours).scatter(1, kept, fours.gather(1, kept)).reshape(weight.shape)


def check_ties(function: Prune) -> str:
    """Check that no more than two of four equal numbers remain, and that any shape is accepted."""
    for shape in ((4,), (3, 4), (2, 16)):
        counts = (function(torch.ones(shape)) != 0).reshape(-1, 4).sum(dim=1)
        assert (counts == 2).all(), (
            f"of four equal numbers, {int(counts[0])} remain: Tensor Cores have room for two, so "
            f"choose two places instead of comparing with a threshold"
        )
    return "exactly two of four equal numbers remain, too"
