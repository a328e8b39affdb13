"""Checks of the lab's three functions: each returns its evidence or asserts what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd

from labs.lab_microscope import solutions
from labs.lab_microscope.kernel_names import counted_kernels, inner_name, labelled_examples

Function = Callable[..., Any]
MIN_ACCURACY = 0.9
ROWS = ((4096, 2), (4097, 2), (4098, 2), (4100, 2), (4104, 2), (4097, 4), (4098, 4), (4097, 8))
TILES = ((4096, 4096, (128, 256)), (4096, 4097, (128, 256)), (4352, 4352, (256, 128)))
UNITS = 132


def check_examples(function: Function) -> str:
    """Check the function with the names that the lab shows."""
    examples = labelled_examples()
    for example in examples.itertuples():
        uses = example.truth == "used"
        assert bool(function(example.kernel)) == uses, (
            f"{inner_name(example.kernel)} uses {'them' if uses else 'none'}: {example.why}"
        )
    return f"right about all {len(examples)} names, from Volta's to Hopper's"


def check_counted_kernels(function: Function) -> str:
    """Check the function with kernels for which a hardware counter showed the truth."""
    table = counted_kernels()
    results = pd.Series([bool(function(name)) for name in table["kernel"]])
    used = table["truth"].eq("used")
    accuracy, alarms = (results == used).mean(), table["kernel"][results & ~used]
    example = f", for example {alarms.iloc[0][:60]}…" if len(alarms) else ""
    evidence = (
        f"right about {accuracy:.0%} of {len(table)} kernels that a counter judged on an H100; "
        f"{len(alarms)} false alarms{example}, {(used & ~results).sum()} missed"
    )
    assert accuracy >= MIN_ACCURACY, f"{evidence}. Words that are too short match too much"
    return evidence


def check_loads(function: Function) -> str:
    """Check the widest load of several rows."""
    for numbers, itemsize in ROWS:
        result, right = function(numbers, itemsize), solutions.widest_load(numbers, itemsize)
        rows = f"rows of {numbers:,} numbers of {itemsize} bytes"
        assert result != solutions.widest_load(numbers, 1) or result == right, (
            f"{rows}: {result} is right for numbers of one byte. How many bytes has a row?"
        )
        assert result >= right, f"{rows}: {result} bytes fit, and so do {right}"
        assert result == right, (
            f"{rows}: {result} bytes do not divide a row of {numbers * itemsize:,}, so the second "
            f"row does not begin where such a load may"
        )
    return "right for rows of odd and even lengths, in 2, 4 and 8 bytes per number"


def check_load_limit(function: Function) -> str:
    """Check that the result is never more than a load can take."""
    widest = max(function(2**power, 2) for power in range(1, 15))
    assert widest == 16, f"a row of 2¹⁴ numbers gives {widest} bytes; a load takes 16 at most"
    return "16 bytes at most, however long the rows"


def check_waves(function: Function) -> str:
    """Check the waves of several products."""
    for m, n, tile in TILES:
        result, right = function(m, n, tile, UNITS), solutions.waves(m, n, tile, UNITS)
        product = f"{m:,} × {n:,} in tiles of {tile[0]} × {tile[1]}"
        full_waves = m * n // (tile[0] * tile[1]) // UNITS
        assert result == int(result), (
            f"{product}: {result} is not a whole number: the last wave counts, too"
        )
        assert result == right or result != full_waves, (
            f"{product}: {result} is rounded down, and the remaining tiles have no wave"
        )
        assert result == right, (
            f"{product}: {result} waves; expected {right}: a tile at the edge is a tile, so round "
            f"up rows, and columns, before you multiply"
        )
    return "right, also where tiles reach over an edge"


def check_units(function: Function) -> str:
    """Check that the result depends on the number of multiprocessors."""
    small, large = (function(4096, 4096, (128, 128), units) for units in (64, 1024))
    assert (small, large) == (16, 1), (
        f"1,024 tiles on 64 and on 1,024 multiprocessors: {small} and {large} waves, not 16 and 1"
    )
    return "right for GPUs with 64 and with 1,024 multiprocessors"
