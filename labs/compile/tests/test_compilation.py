"""Tests of graphs, kernels, the build's check, the cache, and recorded runs."""

import math
import re
from pathlib import Path

import pytest
import torch
from written_helpers import cell_of, defined

from course.checks.functions import check_written
from course.runs import recordings
from labs import compile as lab
from labs.compile import compiler

COUNTER = ("    self.calls += 1\n", "")
PRINT = ('    print(f"batch {self.calls}: mean {out.mean():.2f}")\n', "")
BRANCH = ("    if out.max() > 100:\n    ", "")
ITEM = (".item()", "")
CLAMP = "out.clamp(max=100)"
FIXED = (COUNTER, PRINT, BRANCH, ITEM)
RIGHT = [
    FIXED,
    (*FIXED, (CLAMP, "torch.where(out > 100, 100, out)")),
    (
        COUNTER,
        BRANCH,
        ITEM,
        (PRINT[0], "    if not torch.compiler.is_compiling():\n        print()\n"),
    ),
]
WRONG = {
    (): "3 graph breaks: line .*print needs its text.*Python needs the number.*item.. fetches",
    (COUNTER, PRINT, ITEM): "1 graph break: line .*`if out.max.*to choose a branch",
    (
        PRINT,
        BRANCH,
        ITEM,
    ): "compiles again, because of `self.calls .= 1` .the guard: self.calls == 0",
    (
        *FIXED,
        ("torch.relu(out)", "torch.compiler.disable(torch.relu)(out)"),
    ): "torch.compiler.disable",
    (*FIXED, (CLAMP, "out")): "up to several hundred: .* clamp values above 100 before",
    (*FIXED, (" / out.std()", "")): "a standard deviation of .*, expected 1",
    (*FIXED, ("self.norm(images)", "images")): "between −5 and 5: outputs differ by up to",
    (*FIXED, ("return ", "return self.calls, ")): "forward returns tuple, expected one tensor",
}

IMAGES = torch.randn(2, 16, 8, 8).to(memory_format=torch.channels_last)
RECORDED = {run.config.rung: run for run in recordings.recorded_runs("nvidia-h200", "compiler")}


def with_print(images: torch.Tensor) -> torch.Tensor:
    images = images + 1
    print(images.mean())
    return images * 2


def unbroken(images: torch.Tensor) -> torch.Tensor:
    return (images + 1) * 2


def test_graph_of_a_residual_block_end() -> None:
    table = lab.capture_graph(lab.BlockEnd(16).eval(), IMAGES, IMAGES)
    assert [*table["operator"]] == ["batch_norm", "add", "relu"]
    assert {*table["output"]} == {"2 × 16 × 8 × 8"} and {*table["graph"]} == {1}


@pytest.mark.slow
def test_three_operators_become_one_kernel_that_reads_each_image_once() -> None:
    (kernel,) = lab.kernels(lab.BlockEnd(16).eval(), IMAGES, IMAGES)
    lines = "\n".join(kernel.arithmetic)
    assert lines.count("store") == 1 and "rsqrt" in lines and "#include" not in lines
    assert len(re.findall(r"in_ptr0 \+", lines)) == 1
    accesses = "".join(kernel.memory_accesses)
    assert {"in_ptr0", "out_ptr0"} <= {*re.findall(r"\w+_ptr\d", accesses)}


@pytest.mark.filterwarnings("ignore:dynamo_pgo force disabled")  # with the caches
@pytest.mark.slow
def test_a_missing_compiler_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import config

    monkeypatch.setattr(config.cpp, "cxx", ("/no-such-folder/compiler",))
    monkeypatch.setattr(config, "force_disable_caches", True)
    with pytest.raises(RuntimeError, match="apt install g"):
        lab.kernels(unbroken, IMAGES)


def test_breaks_have_their_line(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    (row,) = lab.find_breaks(with_print, IMAGES).itertuples()
    assert "print" in row.code and row.reason
    assert Path(__file__).read_text().splitlines()[row.line - 1].strip() == row.code
    assert lab.capture_graph(with_print, IMAGES)["graph"].nunique() == 2
    monkeypatch.setattr(compiler, "BACKEND", "eager")
    table = lab.time_versions({"prints": with_print, "unbroken": unbroken}, IMAGES)
    assert [*table["graphs"]] == [2, 1] and (table["ms"] > 0).all()
    assert capsys.readouterr().out == "" and lab.find_breaks(unbroken, IMAGES).empty


@pytest.fixture
def checked(tmp_path: Path, runs_root: Path):
    """Return a function that checks the notebook's cell with parts of it replaced."""

    def check(*replacements: tuple[str, str]):
        cell = cell_of("compile", "forward")
        for old, new in replacements:
            assert old in cell, old
            cell = cell.replace(old, new)
        return check_written("compile.forward", defined(cell, "forward", tmp_path))

    return check


@pytest.mark.parametrize("answer", RIGHT)
def test_right_answers_are_one_graph(answer: tuple, checked) -> None:
    assert checked(*answer).passed


@pytest.mark.parametrize("answer, words", WRONG.items())
def test_wrong_answers_are_explained(answer: tuple, words: str, checked) -> None:
    result = checked(*answer)
    assert result.failed and re.search(words, repr(result)), result


def test_sizes_that_are_compiled() -> None:
    batches = [torch.ones(size, 3) for size in (8, 8, 5, 3, 3)]
    table = lab.compile_shapes(unbroken, batches, dynamic=False)
    assert [*table["compiled"]] == [1, 0, 1, 1, 0]
    assert [*table["shape"]] == ["8 × 3", "8 × 3", "5 × 3", "3 × 3", "3 × 3"]


@pytest.mark.slow
def test_a_copied_cache_is_as_good_as_the_original() -> None:
    table = lab.measure_cache(lab.BlockEnd(16).eval(), IMAGES, IMAGES).set_index("cache")
    assert table["hits"].to_dict() == {"empty": 0, "copied": 1, "empty again": 0}
    assert (table["seconds"] > 0).all()


def test_compile_time_and_its_break_even() -> None:
    run = RECORDED["mode-default-256"]
    first, seconds = run.config.warmup_steps, run.steps["step_s"]
    expected = seconds[:first].sum() - first * seconds[first:].median()
    assert lab.compile_s(run) == pytest.approx(expected)
    assert lab.compile_s(RECORDED["mode-eager-256"]) < 2
    assert lab.break_even_steps(60, 0.05, 0.03) == pytest.approx(3000)
    assert lab.break_even_steps(60, 0.03, 0.05) == math.inf


def test_figures_have_the_recorded_values() -> None:
    assert "160 px: 50.4" in lab.plot_shapes("nvidia-h200", "H200").alt
    eager, compiled = RECORDED["mode-eager-256"], RECORDED["mode-default-256"]
    alt = lab.plot_modes(lab.modes_table([eager, compiled])).alt
    assert "eager: 4,701, default: 6,796" in alt
    assert "at most 0.08 %" in lab.plot_losses(eager, compiled).alt
    assert "2,768 steps" in lab.plot_break_even({"cold": compiled}, eager).alt
    slower = {"slower": RECORDED["mode-default-64"]}
    assert "never" in lab.plot_break_even(slower, RECORDED["mode-eager-64"]).alt
