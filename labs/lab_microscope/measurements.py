"""What a GPU does with products and convolutions of many shapes: measured there, read anywhere."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch

from labs.lab_microscope import kernel_calls as looked
from labs.lab_microscope import libraries
from labs.lab_microscope.cases import STORED, Case, Convolution, Product, row

BASE = Product(4096, 4096, 4096)
FORMATS = ("bf16", "fp16", "tf32", "fp32", "fp64", "fp8", "int8")
MORE = (1, 2, 4, 8)
CHANNELS = (56, *range(60, 69), 72)
NEAR = tuple(range(4088, 4105))
FAR_K = tuple(2**power for power in range(6, 14))
FAR_N = tuple(range(256, 8193, 256))
LINE = tuple(range(1024, 8193, 64))
SIDES = (2048, 4096, 8192, 16384)
SOUGHT = {"bf16": 20, "fp16": 20, "fp8": 20, "tf32": 20, "int8": 0, "fp64": 0, "fp32": 0}
LONGEST_S = 0.04  # of one call that is tried
TRY_S = 0.08  # a product is repeated so long in the search
HELD_S = 1.6  # and the fastest so long: a GPU reports its power as a mean over a second


def products() -> list[Product]:
    """One product in each format, with each side a little longer; and stored in other ways."""
    longer = [BASE] + [
        replace(BASE, **{side: getattr(BASE, side) + more}) for side in "knm" for more in MORE
    ]
    cases = [replace(each, dtype=name) for name in FORMATS for each in longer]
    odd = [replace(BASE, **{side: getattr(BASE, side) + 1}) for side in "knm"]
    return cases + [replace(each, stored=how) for how in STORED[1:] for each in (BASE, *odd)]


def convolutions() -> list[Convolution]:
    """One convolution over channels, formats and layouts; a first layer's, and a depthwise one."""
    kinds = [(name, layout) for name in FORMATS[:4] for layout in ("NCHW", "NHWC")]
    shapes = [(count, count, 1) for count in CHANNELS]
    shapes += [(3, 64, 1), (4, 64, 1), (8, 64, 1), (64, 64, 64)]
    return [
        Convolution(inputs, outputs, name, layout, groups)
        for name, layout in kinds
        for inputs, outputs, groups in shapes
    ]


def grids() -> dict[str, list[Product]]:
    """The map's shapes: near one size, one by one; far, in large steps; and along a line."""
    return {
        "near": [replace(BASE, k=k, n=n) for k in NEAR for n in NEAR],
        "far": [replace(BASE, k=k, n=n) for k in FAR_K for n in FAR_N],
        "line": [replace(BASE, n=n) for n in LINE],
    }


class Names:
    """Names of kernels, each kept once."""

    def __init__(self) -> None:
        self.all: list[str] = []

    def numbers(self, names: Iterable[str]) -> list[int]:
        """Where they stand in the list."""
        names = list(names)
        self.all += [name for name in dict.fromkeys(names) if name not in self.all]
        return [self.all.index(name) for name in names]


def rows(cases: list[Case], device: torch.device, names: Names) -> Iterator[dict[str, Any]]:
    """Each case with its microseconds and its kernels, or with what was refused or is missing.

    kernels_us are of one call: what is far below us was spent outside of kernels.
    """
    took: dict[Case, tuple[float, ...]] = {}
    for case in cases:
        try:
            took[case] = looked.times(case, device)
        except (RuntimeError, ValueError, OSError) as error:
            yield row(case) | {"said": str(error).splitlines()[0][:200]}
    for case, kernels in zip(took, looked.kernels(took, device)):
        first, middle, third = took[case]
        yield row(case) | {
            "us": round(1e6 * middle, 3),
            "iqr_us": round(1e6 * (third - first), 3),
            "kernels": names.numbers(called for called, _ in kernels),
            "kernels_us": [round(us, 3) for _, us in kernels],
        }


def grid(cases: list[Product], device: torch.device, names: Names) -> dict[str, Any]:
    """Many products as columns: sides, microseconds and their spread, kernels."""
    took = [looked.times(case, device, 10) for case in cases]
    seen = looked.kernels(cases, device)
    sides = {side: [getattr(case, side) for case in cases] for side in "mnk"}
    return {
        "dtype": cases[0].dtype,
        **sides,
        "us": [round(1e6 * middle, 3) for _, middle, _ in took],
        "iqr_us": [round(1e6 * (third - first), 3) for first, _, third in took],
        "kernels": [names.numbers(called for called, _ in each) for each in seen],
    }


def largest(
    name: str, device: torch.device, names: Names, sides: tuple[int, ...] = SIDES
) -> dict[str, Any]:
    """The fastest product in a format: first on a coarse grid, then in steps around the best.

    So does the search for the "maximum achievable matmul FLOPS" of S. Bekman's mamf-finder. But
    here nothing rests between calls, so that the clock is the one that lasts.
    """
    tried: dict[Product, float] = {}

    def rate(case: Product) -> float:
        if case not in tried:
            tried[case] = looked.steady(case, device, TRY_S)["us"]
        return case.flop / tried[case]

    begin = max((Product(s, s, s, name) for s in sides[:2]), key=rate)
    most = 1e6 * LONGEST_S * rate(begin)
    coarse = [Product(m, n, k, name) for m in sides for n in sides for k in sides]
    if not SOUGHT[name]:
        coarse = [case for case in coarse if case.m == case.n == case.k]
    best = max((case for case in coarse if case.flop <= most), key=rate)
    chance, step = random.Random(0), sides[0] // 16
    for _ in range(SOUGHT[name]):
        near = {
            side: max(step, getattr(best, side) + step * chance.randint(-12, 12)) for side in "mnk"
        }
        if (case := replace(best, **near)).flop <= most:
            best = max(best, case, key=rate)
    return {
        "dtype": name,
        "m": best.m,
        "n": best.n,
        "k": best.k,
        "tried": [[c.m, c.n, c.k, us] for c, us in tried.items()],
        "kernels": names.numbers(called for called, _ in looked.kernels([best], device)[0]),
        "cold_us": round(1e6 * looked.timed(best, device), 3),
        "normal": looked.steady(best, device, HELD_S),
        "zeros": looked.steady(best, device, HELD_S, zeros=True),
    }


def parts(device: torch.device) -> dict[str, Callable[[Names], Any]]:
    """All that is measured, what matters most first."""
    found: dict[str, Callable[[Names], Any]] = {
        "products": lambda names: [*rows(products(), device, names)],
        "convolutions": lambda names: [*rows(convolutions(), device, names)],
    }
    for name, cases in grids().items():
        found[name] = lambda names, cases=cases: grid(cases, device, names)
    for name in SOUGHT:
        found[f"largest_{name}"] = lambda names, name=name: largest(name, device, names)
    # Last, since a mistake in C++ may leave the GPU's process of no use.
    for name, called in (("cublas", libraries.products), ("cudnn", libraries.convolutions)):
        found[name] = lambda names, called=called: [*rows(called(), device, names)]
    return found
