"""What the lab's three functions must do: each look says what it saw, or asserts what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd

from labs.lab_microscope import solutions as given
from labs.lab_microscope.names import FEW, judged_by_counters

Function = Callable[..., Any]
ENOUGH = 0.9  # of the kernels that a counter judged
ROWS = ((4096, 2), (4097, 2), (4098, 2), (4100, 2), (4104, 2), (4097, 4), (4098, 4), (4097, 8))
TILES = ((4096, 4096, (128, 256)), (4096, 4097, (128, 256)), (4352, 4352, (256, 128)))
UNITS = 132


def knows_names(function: Function) -> str:
    """Is it right about the few names that the lab shows?"""
    for each in FEW:
        told = bool(function(each.name))
        if told and not each.used:
            raise AssertionError(f"{each.short} uses none: {each.why}")
        assert told or not each.used, f"{each.short} uses them: {each.why}"
    return f"right about all {len(FEW)} names, from Volta's to Hopper's"


def knows_others(function: Function) -> str:
    """How often is it right about kernels that a counter judged?"""
    table = judged_by_counters()
    told = pd.Series([bool(function(name)) for name in table["kernel"]])
    used = table["truth"].eq("used")
    right, alarms = (told == used).mean(), table["kernel"][told & ~used]
    first = f", {alarms.iloc[0][:60]}… for one" if len(alarms) else ""
    words = (
        f"of {len(table)} kernels that a counter judged on an H100, {right:.0%} right; "
        f"{len(alarms)} false alarms{first}, {(used & ~told).sum()} missed"
    )
    assert right >= ENOUGH, f"{words}. Words that are too short find too much"
    return words


def knows_loads(function: Function) -> str:
    """Is each row's widest load right?"""
    for numbers, itemsize in ROWS:
        told, right = function(numbers, itemsize), given.widest_load(numbers, itemsize)
        said = f"rows of {numbers:,} numbers of {itemsize} bytes"
        assert told != given.widest_load(numbers, 1) or told == right, (
            f"{said}: {told} is right for numbers of one byte. How many bytes has a row?"
        )
        assert told >= right, f"{said}: {told} bytes fit, and so do {right}"
        assert told == right, (
            f"{said}: {told} bytes do not divide a row of {numbers * itemsize:,}, so the second "
            f"row does not begin where such a load may"
        )
    return "right for rows of odd and even lengths, in 2, 4 and 8 bytes a number"


def loads_at_most_16(function: Function) -> str:
    """Is it never more than a load can take?"""
    widest = max(function(2**power, 2) for power in range(1, 15))
    assert widest == 16, f"a row of 2¹⁴ numbers gives {widest} bytes; a load takes 16 at most"
    return "16 bytes at most, however long the rows"


def counts_waves(function: Function) -> str:
    """Are the waves of a product right?"""
    for m, n, tile in TILES:
        told, right = function(m, n, tile, UNITS), given.waves(m, n, tile, UNITS)
        said = f"{m:,} × {n:,} in tiles of {tile[0]} × {tile[1]}"
        whole = m * n / (tile[0] * tile[1]) / UNITS
        assert told == int(told), f"{said}: {told} is no whole number: the last wave is one, too"
        assert told == right or told != int(whole), (
            f"{said}: {told} is rounded down, and what is left over has no wave"
        )
        assert told == right, (
            f"{said}: {told} waves, where {right} are right: a tile at the edge is a tile, so "
            f"round up rows, and columns, before you multiply"
        )
    return "right, also where tiles reach over an edge"


def waves_of_units(function: Function) -> str:
    """Does it ask how many multiprocessors there are?"""
    few, many = (function(4096, 4096, (128, 128), units) for units in (64, 1024))
    assert (few, many) == (16, 1), (
        f"1,024 tiles on 64 and on 1,024 multiprocessors: {few} and {many} waves, not 16 and 1"
    )
    return "right for GPUs with few multiprocessors and with many"
