"""Kernels are compiled ahead, all at once: the right ones, and without a trace in the network.

No GPU is needed to compile for one: a driver is put in whose GPU is an H100 that runs nothing.
"""

import copy
import os
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from small import network as small_network
from torchvision.models import resnet50

pytest.importorskip("triton", reason="the kernels are written in Triton, not here")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("nothing is compiled in the interpreter", allow_module_level=True)

from triton import JITFunction, knobs  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler.compiler import max_shared_mem  # noqa: E402
from triton.runtime import driver  # noqa: E402
from triton.runtime._async_compile import FutureKernel  # noqa: E402

from fast_resnet import convert, model  # noqa: E402
from fast_resnet import segments as segments_module  # noqa: E402
from fast_resnet.kernels import compiling, products, rows, stem  # noqa: E402
from fast_resnet.kernels.compiling import Launch, compile_at_once  # noqa: E402
from fast_resnet.kernels.rows import stats_kernel  # noqa: E402
from fast_resnet.segments import Segments, launches  # noqa: E402
from fast_resnet.tuning import Choices, Saved  # noqa: E402

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
    for module in (products, rows, stem):
        for each in vars(module).values():
            if isinstance(each, JITFunction):
                monkeypatch.setattr(each, "device_caches", defaultdict(each.create_binder))
    names: list[str] = []
    monkeypatch.setattr(driver, "_active", pretended(names, 232_448))
    return names


def of_stats(count: int, tile: int = 16) -> Launch:
    """A small kernel's: on meta, as all that are noted."""
    y = torch.empty(count, 64, dtype=torch.float16, device="meta")
    sums = torch.empty(128, device="meta")
    return Launch(stats_kernel, (1, 1), (y, sums, count, 64, tile, 64), {"num_warps": 1})


def network() -> model.FastResNet:
    return convert(small_network())


@pytest.mark.slow
def test_each_kernel_is_compiled_once_and_loaded(loaded: list[str], own_cache: Path) -> None:
    report = compile_at_once([of_stats(32), of_stats(48), of_stats(33), of_stats(32, 32)], CPU)
    assert report.kernels == 3  # 32 and 48 rows are both a multiple of 16
    assert loaded == ["stats_kernel"] * 3
    assert len([*own_cache.glob("*/stats_kernel.cubin")]) == 3
    known = [*stats_kernel.device_caches[0][0].values()]
    assert [of_stats(count).compiled() in known for count in (32, 48, 33)] == [True] * 3
    assert len(known) == 3
    assert all(each.metadata.enable_fp_fusion for each in known)  # whatever Triton's default is


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_first_layer_is_multiplied_in_fp16_and_its_gradient_in_the_networks_type(
    dtype: torch.dtype,
) -> None:
    noted = launches(Segments(network(), dtype, {}), SHAPE)
    at = {"stem_pool_kernel": ("Y", "P"), "stem_bwd_kernel": ("Y", "DP", "DY")}
    for name, arguments in at.items():
        types = [
            [each.arguments[each.kernel.arg_names.index(argument)].dtype for argument in arguments]
            for each in noted
            if each.kernel.__name__ == name
        ]
        assert types and all(found == [torch.float16, *[dtype] * len(found[1:])] for found in types)


def kept(future: FutureKernel, ignore_errors: bool = False) -> Any:
    """A thread's kernel as Triton 3.7 and 3.8 have it: of one that failed the place is kept."""
    if future.kernel is None:
        try:
            found = future.future.result()
        except Exception:
            if ignore_errors:
                return None
            raise
        future.finalize_compile(found)
        future.kernel = found
    return future.kernel


@pytest.mark.parametrize("keeps", [False, True])
def test_a_thread_that_fails_does_no_harm(
    loaded: list[str], monkeypatch: pytest.MonkeyPatch, keeps: bool
) -> None:
    failed = []
    if keeps:
        monkeypatch.setattr(FutureKernel, "result", kept)

    class Failing(ThreadPoolExecutor):
        def submit(self, work: Callable, *rest: Any) -> Any:
            if failed:
                return super().submit(work, *rest)
            return super().submit(lambda: failed.append(1) or 1 / 0)

    monkeypatch.setattr(compiling, "ThreadPoolExecutor", Failing)
    assert compile_at_once([of_stats(32), of_stats(33)], CPU).kernels == 2
    assert (failed, len(loaded)) == ([1], 2)


def test_a_kernel_that_the_gpu_cannot_hold_is_left_to_its_launch(
    loaded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "_active", pretended(loaded, room=-1))
    max_shared_mem.cache_clear()
    assert compile_at_once([of_stats(32)], CPU).kernels == 1
    assert loaded == []
    max_shared_mem.cache_clear()


def test_ranks_share_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)
    noted, cores = [of_stats(count) for count in range(10)], compiling._threads()
    orders = []
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    for rank in "012":
        monkeypatch.setenv("LOCAL_RANK", rank)
        orders.append([each.arguments[2] for each in compiling._turned(noted)])
    assert orders[0] == [0, 1, 2, 9, 8, 7, 6, 5, 4, 3]
    assert orders[1] == [3, 4, 5, 2, 1, 0, 9, 8, 7, 6]
    assert orders[2] == [6, 7, 8, 9, 5, 4, 3, 2, 1, 0]
    assert compiling._threads() == max(1, cores // 3)
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "24")  # each rank a task, which sees its cores alone
    monkeypatch.setattr(compiling.os, "sched_getaffinity", lambda _: {*range(24)})
    assert compiling._threads() == 24
    monkeypatch.setattr(compiling.os, "sched_getaffinity", lambda _: {*range(96)})  # or all
    assert compiling._threads() == 32


def test_nothing_of_a_network_is_changed() -> None:
    net = network()
    segments = model.Step(net, torch.float16).segments
    before = copy.deepcopy((net.state_dict(), segments.state.half_weights, torch.get_rng_state()))
    assert launches(segments, SHAPE)
    after = (net.state_dict(), segments.state.half_weights, torch.get_rng_state())
    assert all(torch.equal(before[0][name], value) for name, value in after[0].items())
    assert all(map(torch.equal, before[1:], after[1:]))
    assert all(each.grad is None for each in net.parameters())


@pytest.mark.usefixtures("loaded")
def test_triton_is_asked_for_the_same_kernels_as_by_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which one a launch needs depends on what its numbers and addresses can be divided by, too."""
    asked: set[tuple] = set()

    def note(*, key: str, fn: Any, **_: Any) -> bool:
        asked.add((fn.name, key))
        return True  # nothing is compiled

    def ask(_: Choices, kernel: Any, grid: tuple, *arguments: Any, **options: Any) -> None:
        Launch(kernel, grid, arguments, options).compiled()

    monkeypatch.setattr(knobs.runtime, "jit_cache_hook", note)
    segments = model.Step(network(), torch.float16).segments
    for each in launches(segments, SHAPE):
        each.compiled()
    ahead, asked = asked, set()
    monkeypatch.setattr(Choices, "launch", ask)
    n, _, *size = SHAPE
    images = torch.zeros(n, 4, *size, dtype=torch.float16)
    with torch.no_grad():
        segments.rehearse(images.to(memory_format=torch.channels_last))
    assert len(asked) > 20
    assert ahead == asked


def test_where_a_tile_is_chosen_no_other_is_compiled() -> None:
    with torch.device("meta"):
        segments = Segments(resnet50(), torch.float16, Saved("NVIDIA H100 80GB HBM3").chosen)
    shape = torch.Size((64, 3, 224, 224))
    known = launches(segments, shape)
    segments.choices.chosen = {}
    unknown = launches(segments, shape)
    segments.choices.interpreted = True  # has one tile of each
    assert len(known) == len(launches(segments, shape)) < len(unknown)
    assert {each.key for each in known} < {each.key for each in unknown}


def test_what_cannot_be_compiled_ahead_is_told_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(compiling, "compile_at_once", fail)
    step = model.Step(network(), torch.float16)
    step._may_compile = True  # as on a GPU
    for height in (64, 96):
        step._prepared(torch.zeros(2, 3, height, height))
    assert capsys.readouterr().err == "fast_resnet compiles kernel by kernel: no compiler\n"


def test_each_shape_of_images_is_compiled_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    heights = []
    monkeypatch.setattr(
        segments_module, "launches", lambda segments, shape: heights.append(shape[2]) or []
    )
    monkeypatch.setattr(compiling, "compile_at_once", lambda noted, device: noted)
    step = model.Step(network(), torch.float16)
    step._may_compile = True  # as on a GPU
    for height in (64, 96, 64):
        step._prepared(torch.zeros(2, 3, height, height))
    assert heights == [64, 96]
