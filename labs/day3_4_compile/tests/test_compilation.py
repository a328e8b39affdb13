"""What is told of the compiler: graphs, kernels really written, breaks, recompilations."""

import logging
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from cases import for_all

from course.analysis import roofline
from course.config import rung
from course.runs import isolated, recordings
from labs import day3_4_compile as compilation
from labs.day3_4_compile import compiler_output as made
from labs.day3_4_compile.exports import exported

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
    assert {"in_ptr0", "out_ptr0"} <= {*re.findall(r"\w+_ptr\d", "".join(kernel.moves))}
    assert "#include" in kernel.source and "#include" not in lines


@pytest.mark.filterwarnings("ignore:dynamo_pgo force disabled")  # with the caches
@pytest.mark.slow
def test_no_compiler_is_told_with_the_way_to_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import config

    monkeypatch.setattr(config.cpp, "cxx", ("/no-such-folder/compiler",))
    monkeypatch.setattr(config, "force_disable_caches", True)
    with pytest.raises(RuntimeError, match="apt install g"):
        compilation.kernels(whole, IMAGES)


@for_all(
    "function, word",
    [
        (printing, "print"),
        (asking, "item"),
        (logging_it, "LOG"),
    ],
)
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


@for_all(
    "dynamic, compiled",
    [
        (None, [1, 0, 1, 0, 0]),
        (False, [1, 0, 1, 1, 0]),
        (True, [1, 0, 0, 0, 0]),
    ],
)
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


@pytest.mark.slow
def test_a_copied_cache_is_as_good_as_the_first() -> None:
    table = compilation.carried(compilation.Tail(16).eval(), IMAGES, IMAGES).set_index("cache")
    assert table["found"].to_dict() == {"empty": 0, "copied": 1, "empty again": 0}
    assert table["seconds"]["copied"] < 0.7 * table["seconds"].drop("copied").min()


def test_breaks_that_are_mended_one_by_one(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(made, "BACKEND", "eager")
    table = compilation.mended({"prints": printing, "whole": whole}, IMAGES)
    assert [*table["graphs"]] == [2, 1] and (table["ms"] > 0).all()
    assert capsys.readouterr().out == ""


def test_an_exported_network_answers_as_the_one_it_was_made_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        torch._inductor,
        "aoti_compile_and_package",
        lambda program, package_path, **_: torch.export.save(program, package_path),
    )
    loaded = lambda path: torch.export.load(path).module()  # noqa: E731
    monkeypatch.setattr(torch._inductor, "aoti_load_package", loaded)
    net = torch.nn.Sequential(torch.nn.Conv2d(16, 4, 1), torch.nn.ReLU())
    file = exported(net.eval(), IMAGES)
    assert file["differs"] == 0 and file["mib"] > 0 and file["made_s"] > 0


def test_a_compiled_file_that_crashes_leaves_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def crashed(function: Callable, *arguments: object) -> None:
        raise isolated.Crash(f"The process of {function.__name__} crashed (SIGSEGV): no error")

    monkeypatch.setattr(isolated, "call", crashed)
    net = torch.nn.Conv2d(16, 4, 1)
    table = compilation.inferred(net, IMAGES)
    assert [*table["way"]] == ["as it is"] and not net.training
    assert "process of exported crashed (SIGSEGV)" in capsys.readouterr().out


def test_a_network_reaches_the_process_that_exports_it() -> None:
    net = torch.nn.Sequential(torch.nn.Conv2d(16, 4, 1), torch.nn.BatchNorm2d(4)).eval()
    with torch.no_grad():  # as `inferred` calls `exported`, without the minute that compiling takes
        answer = isolated.call(torch.func.functional_call, net, {}, IMAGES)
        assert torch.allclose(answer, net(IMAGES), atol=1e-6)


RECORDED = {run.config.rung: run for run in recordings.recorded_runs("nvidia-h200", "compiler")}


def test_seconds_of_compiling_are_those_beyond_usual_steps() -> None:
    run = RECORDED["mode-default-256"]
    first = run.config.warmup_steps
    seconds = run.steps["step_s"]
    due = seconds[:first].sum() - first * seconds[first:].median()
    assert compilation.compile_s(run) == pytest.approx(due)
    assert compilation.compile_s(RECORDED["mode-eager-256"]) < 2
    unwatched = SimpleNamespace(steps=run.steps, config=replace(run.config, warmup_steps=0))
    with pytest.raises(ValueError, match="warmup_steps=1"):
        compilation.compile_s(unwatched)


def test_losses_side_by_side() -> None:
    run, other = RECORDED["mode-default-256"], RECORDED["mode-eager-256"]
    table = compilation.losses(run, other)
    assert [*table.columns] == ["step", "loss", "difference"]
    back = table["loss"] / (1 + table["difference"])
    assert [*back] == pytest.approx([*other.steps["loss"].astype(float)])
    same = compilation.losses(run, run)
    assert (same["difference"] == 0).all()


def test_what_is_not_recorded_is_told_with_what_is() -> None:
    with pytest.raises(ValueError, match="no compile is recorded for 'nvidia-h100': nvidia-h200"):
        compilation.recorded_part("nvidia-h100", "tail")


def test_new_shapes_are_those_of_an_empty_cache() -> None:
    table = compilation.shapes("nvidia-h200")
    growing = table[table["course"] == "growing"]
    assert len(growing) == 8 and [*growing["image_px"].unique()] == [128, 160, 192, 224]
    assert {*map(str, growing["dynamic"])} == {"None", "False"}


def test_pictures_say_what_they_show() -> None:
    pictures = compilation.figures
    bytes_of = pd.DataFrame(
        {"eager": [6.0, 3.0, 1.0], "least": [6.0, 0.0, 1.0]},
        index=["convolution", "relu_", "copy_"],
    )
    alt = pictures.plot_traffic(bytes_of).alt
    assert "ReLU: eager: 3; other: eager: 1, fused: 1; total: eager: 10 MB, fused: 7 MB" in alt
    assert "160 px: 50.4" in pictures.plot_shapes(compilation.shapes("nvidia-h200"), "it").alt
    eager, compiled = RECORDED["mode-eager-256"], RECORDED["mode-default-256"]
    alt = pictures.plot_modes(compilation.modes([eager, compiled])).alt
    assert "images/s, batch 256; eager: 4,701, default: 6,796" in alt
    alt = pictures.plot_losses(eager, compiled, compilation.losses(compiled, eager)).alt
    assert "they differ by at most 0.08 %" in alt
    slower = RECORDED["mode-default-64"]
    assert "cold: paid after 2,768 steps" in pictures.plot_paid({"cold": compiled}, eager).alt
    never = pictures.plot_paid({"slower": slower}, RECORDED["mode-eager-64"])
    assert "slower: paid after never" in never.alt


def test_fusing_moves_no_more_bytes() -> None:
    small = rung("device", data="synthetic", image_px=32, batch_size=2, model="resnet18")
    table = roofline.fusion_traffic(roofline.operators(small).set_index("operator"))
    assert (table["least"] <= table["most"]).all() and (table["most"] <= table["eager"]).all()
