"""Tests of kernels, graph breaks, the build's check, figures, and recorded runs."""

import re
from pathlib import Path

import pytest
import torch
from written_helpers import cell_of, defined

from course.checks.functions import check_written
from course.runs import recordings
from labs import compile as lab
from labs.compile import compiler, figures, verify

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
    (row,) = compiler.breaks(with_print, IMAGES).itertuples()
    assert "print" in row.code and row.reason
    assert Path(__file__).read_text().splitlines()[row.line - 1].strip() == row.code
    monkeypatch.setattr(compiler, "BACKEND", "eager")
    table = compiler.time_versions({"prints": with_print, "unbroken": unbroken}, IMAGES)
    assert [*table["graphs"]] == [2, 1] and (table["ms"] > 0).all()
    assert capsys.readouterr().out == "" and compiler.breaks(unbroken, IMAGES).empty


def test_the_counter_uses_up_all_versions_before_the_time_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As the notebook explains: four graphs, and seven more until Dynamo's limit."""
    monkeypatch.setattr(compiler, "BACKEND", "eager")
    assert [*verify.time_forward(verify.forward)["graphs"]] == [11, 1]


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


def test_compile_time() -> None:
    run = RECORDED["mode-default-256"]
    first, seconds = run.config.warmup_steps, run.steps["step_s"]
    expected = seconds[:first].sum() - first * seconds[first:].median()
    assert lab.compile_s(run) == pytest.approx(expected)
    assert lab.compile_s(RECORDED["mode-eager-256"]) < 2
    table = lab.modes_table([run, RECORDED["mode-eager-256"]])
    assert [*table["mode"]] == ["default", "eager"]
    assert [*table["images_per_s"].round()] == [6796, 4701]


def test_the_recorded_kernel_makes_the_trips_of_the_figure() -> None:
    tail = lab.recorded_tail("nvidia-h200")
    lines = [line for line in tail.kernel.memory_accesses if "(x2)" in line]  # of images' size
    reads, writes = sum("load" in line for line in lines), sum("store" in line for line in lines)
    assert {(reads, writes)} == {*figures.TRIPS["fused"].values()}
    alt = lab.plot_trips().alt
    assert "eager: 7 trips" in alt and "addition: reads 2, writes 1" in alt and "fused: 3" in alt
