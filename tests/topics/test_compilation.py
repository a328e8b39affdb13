"""What is told of the compiler: graphs, kernels really written, breaks, recompilations."""

import logging
import math
import re
from pathlib import Path

import pytest
import torch

from course.topics import compilation
from course.topics.compilation import made

LOG = logging.getLogger("somebody")
IMAGES = torch.randn(2, 16, 8, 8).to(memory_format=torch.channels_last)


def printing(images: torch.Tensor) -> torch.Tensor:
    images = images + 1
    print(images.mean())
    return images * 2


def asking(images: torch.Tensor) -> torch.Tensor:
    images = images + 1
    if images.max().item() > 1e9:
        images = images.clamp(max=1e9)
    return images * 2


def logging_it(images: torch.Tensor) -> torch.Tensor:
    images = images + 1
    LOG.warning("a batch came")
    return images * 2


def whole(images: torch.Tensor) -> torch.Tensor:
    return (images + 1) * 2


def test_graph_of_a_residual_blocks_end() -> None:
    table = compilation.graph(compilation.Tail(16).eval(), IMAGES, IMAGES)
    assert [*table["operator"]] == ["batch_norm", "add", "relu"]
    assert {*table["output"]} == {"2 × 16 × 8 × 8"} and {*table["graph"]} == {1}


@pytest.mark.slow
def test_three_operators_become_one_kernel_that_reads_each_image_once() -> None:
    (kernel,) = compilation.kernels(compilation.Tail(16).eval(), IMAGES, IMAGES)
    assert "batch_norm" in kernel.name and "add_relu" in kernel.name
    lines = "\n".join(kernel.arithmetic)
    assert lines.count("store") == 1 and "rsqrt" in lines
    assert len(re.findall(r"in_ptr0 \+", lines)) == 1
    assert "#include" in kernel.source and "#include" not in lines


@pytest.mark.filterwarnings("ignore:dynamo_pgo force disabled")  # with the caches
def test_no_compiler_is_told_with_the_way_to_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import config

    monkeypatch.setattr(config.cpp, "cxx", ("no-such-compiler",))
    monkeypatch.setattr(config, "force_disable_caches", True)
    with pytest.raises(RuntimeError, match="apt install g"):
        compilation.kernels(whole, IMAGES)


@pytest.mark.parametrize("function, word", [
    (printing, "print"), (asking, "item"), (logging_it, "LOG"),
])  # fmt: skip
def test_a_break_is_found_with_its_line(function, word: str) -> None:
    (row,) = compilation.breaks(function, IMAGES).itertuples()
    assert word in row.code and row.reason
    source = Path(__file__).read_text().splitlines()
    assert source[row.line - 1].strip() == row.code
    assert compilation.graph(function, IMAGES)["graph"].nunique() == 2


def test_a_whole_function_has_no_break() -> None:
    assert compilation.breaks(whole, IMAGES).empty
    assert compilation.graph(whole, IMAGES)["graph"].nunique() == 1


def batches(*sizes: int) -> list[torch.Tensor]:
    return [torch.ones(size, 3) for size in sizes]


@pytest.mark.parametrize("dynamic, compiled", [
    (None, [1, 0, 1, 0, 0]), (False, [1, 0, 1, 1, 0]), (True, [1, 0, 0, 0, 0]),
])  # fmt: skip
def test_which_sizes_are_compiled_for(dynamic: bool | None, compiled: list[int]) -> None:
    table = compilation.compilations(whole, batches(8, 8, 5, 3, 3), dynamic=dynamic)
    assert [*table["compiled"]] == compiled
    assert [*table["shape"]] == ["8 × 3", "8 × 3", "5 × 3", "3 × 3", "3 × 3"]
    assert (table["seconds"] > 0).all()


def test_above_the_limit_nothing_is_compiled() -> None:
    with torch._dynamo.config.patch(recompile_limit=4):
        table = compilation.compilations(whole, batches(*range(2, 10)), dynamic=False)
    assert [*table["compiled"]] == [1, 1, 1, 1, 0, 0, 0, 0]


def test_when_compiling_has_paid() -> None:
    assert compilation.paid_after(60, 0.05, 0.03) == pytest.approx(3000)
    assert compilation.paid_after(60, 0.03, 0.05) == math.inf


def test_logs_are_as_loud_as_before() -> None:
    log = logging.getLogger("torch._dynamo")
    before = log.level
    compilation.breaks(printing, IMAGES)
    assert log.level == before
    assert made.NO_COMPILER
