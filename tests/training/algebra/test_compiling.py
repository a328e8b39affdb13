"""Kernels are compiled ahead, all at once: the right ones, and without a trace in the network.

No GPU is needed to compile for one: a driver is put in whose GPU is an H100 that runs nothing.
"""

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import of_algebra
import pytest
import torch

triton = pytest.importorskip("triton", reason="the kernels are written in Triton, not here")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.runtime import driver  # noqa: E402

from course.training.algebra import fused, plain  # noqa: E402
from course.training.algebra.kernels.compiling import Launch, compile_at_once  # noqa: E402
from course.training.algebra.kernels.rows import stats_kernel  # noqa: E402

CPU, SHAPE = torch.device("cpu"), torch.Size((2, 3, 64, 64))


def pretended(loaded: list[str], room: int) -> Any:
    """A driver with all that compiling and loading ask of one."""

    def load_binary(name: str, *_: Any) -> tuple:
        loaded.append(name)
        return None, None, 32, 0, 1024

    utils = SimpleNamespace(
        get_device_properties=lambda device: {"max_shared_mem": room}, load_binary=load_binary
    )
    return SimpleNamespace(
        get_current_device=lambda: 0,
        get_current_stream=lambda device: 0,
        get_current_target=lambda: GPUTarget("cuda", 90, 32),
        launcher_cls=lambda source, metadata: print,
        utils=utils,
    )


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "triton"


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels that were brought onto the GPU, by name."""
    monkeypatch.setattr(stats_kernel, "device_caches", copy.copy(stats_kernel.device_caches))
    stats_kernel.device_caches.clear()
    names: list[str] = []
    monkeypatch.setattr(driver, "_active", pretended(names, 232_448))
    return names


def of_stats(rows: int, tile: int = 16) -> Launch:
    """A small kernel's: on meta, as all that are noted."""
    y = torch.empty(rows, 64, dtype=torch.float16, device="meta")
    sums = torch.empty(128, device="meta")
    return Launch(stats_kernel, (1, 1), (y, sums, rows, 64, tile, 64), {"num_warps": 1})


def network() -> fused.FusedResNet:
    return fused.convert(plain.convert(of_algebra.network()))


def test_each_kernel_is_compiled_once_and_loaded(loaded: list[str], own_cache: Path) -> None:
    report = compile_at_once([of_stats(32), of_stats(48), of_stats(33), of_stats(32, 32)], CPU)
    assert report.kernels == 3  # 32 and 48 rows are both a multiple of 16
    assert loaded == ["stats_kernel"] * 3
    assert len([*own_cache.glob("*/stats_kernel.cubin")]) == 3
    known = [*stats_kernel.device_caches[0][0].values()]
    assert [of_stats(rows).compiled() in known for rows in (32, 48, 33)] == [True] * 3
    assert len(known) == 3
