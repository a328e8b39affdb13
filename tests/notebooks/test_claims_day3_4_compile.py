"""Lab 3.4 says what the records say."""

import json
import logging
from functools import cache

import pandas as pd
import pytest
import torch
from claims import text_of, text_of_quiz

from course.config import BEYOND, LADDER, rung
from course.runs import recordings
from course.runs.run import PROJECT, Run
from course.topics import compilation, roofline

TEXT, QUIZ = text_of("day3_4_compile"), text_of_quiz("day3_4")
BEHIND = " ".join((PROJECT / "docs/behind-the-labs.md").read_text().split("## Lab 3.4")[1].split())
PERFORMANCE = (PROJECT / "docs/performance.md").read_text()
H200 = "nvidia-h200"


@cache
def recorded() -> dict[str, Run]:
    return {run.config.rung: run for run in recordings.recorded_runs(H200, "compiler")}


@cache
def modes() -> pd.DataFrame:
    runs = (run for name, run in recorded().items() if not name.endswith("again"))
    return compilation.modes(runs).set_index(["batch_size", "mode"])


@cache
def rungs(machine: str, device: str) -> dict[str, float]:
    on = recordings.ladders(machine)[device]
    usual = LADDER | BEYOND
    return {
        name: record.images_per_s
        for (name, precision), record in on.items()
        if precision == {"half": "bf16"}.get(usual[name].precision, usual[name].precision)
    }


def said(words: str, where: str = TEXT) -> None:
    assert words in where, words


@pytest.mark.slow
def test_bytes() -> None:
    table = roofline.operators(rung("channels_last", **recordings.SETUP)).set_index("operator")
    total = roofline.fused(table).sum().round()
    assert total.to_dict() == {"eager": 486, "least": 343, "most": 362}
    said("An image of a training step moves 486 MB.")
    said("343 MB is what fusing can do at best (362,")
    said("lifts the roof from 6,200 images/s to 8,800. Recorded were 3,998 and, compiled, 5,684.")
    moved = roofline.recorded_ceilings("nvidia-h100").bytes_per_s / 1e6
    assert [round(moved / total[name], -2) for name in ("eager", "least")] == [6200, 8800]
    there = rungs("nvidia-h100", "GPU")
    assert [round(there[name]) for name in ("fused", "compile")] == [3998, 5684]
    said("The compiler's own schedule [moves 366]")
    said("moves 366 MB an image instead of 486", PERFORMANCE)
    said("486 ÷ 343 = 1.42 would be the most, and 1.45 came")
    assert round(486 / 343, 2) == 1.42
    speeds = modes()["images_per_s"][256]
    assert round(speeds["default"] / speeds["eager"], 2) == 1.45
    said("trains 1.4 times as fast on a GPU")
    assert round(there["compile"] / there["fused"], 1) == 1.4


def test_one_kernel() -> None:
    tail = compilation.recorded_part(H200, "tail")
    said("7 ÷ 3 = 2.3 was due, and 2.1 came")
    assert round(7 / 3, 1) == 2.3
    assert round(tail["ms"]["eager"] / tail["ms"]["compiled"], 1) == 2.1
    said("5.4 % of the numbers are others")
    said("5.4 % of the numbers differ from eager's in bf16", BEHIND)
    assert round(tail["differ"]["compiled"], 3) == 0.054 and tail["differ"]["emulated"] == 0
    kernel = compilation.recorded_kernel(H200)
    pointers = " ".join(kernel.moves)
    assert pointers.count("in_ptr0 +") == pointers.count("in_ptr5 +") == 1  # image and shortcut
    assert pointers.count("out_ptr0 +") == 1 and len(kernel.moves) == 7
    assert len(kernel.arithmetic) > 15


def test_fp16_gains_less() -> None:
    said("[compiling brings 1.22](../docs/performance.md#the-answer) on an H100")
    said('the same with `torch.compile(mode="reduce-overhead")`', PERFORMANCE)
    said("| 6,018 (6,002 to 6,019) | 1.22 |", PERFORMANCE)


def test_a_processor_loses() -> None:
    said("trained 49.7 images/s as it is, and 43.0 compiled")
    found = rungs("nvidia-h100", "CPU")
    names = ("baseline", "amp", "channels_last", "fused", "compile")
    assert [f"{found[name]:.1f}" for name in names] == ["22.1", "31.8", "51.0", "49.7", "43.0"]
    said("22.1, 31.8, 51.0, 49.7 and 43.0 images/s from `baseline` to `compile`", BEHIND)
    runs = recordings.recorded_runs("nvidia-h100", "throughput")
    days = {run.record.machine for run in runs if run.record.device == "cpu"}
    assert len(days) == 1  # one machine, one day


@pytest.mark.slow
def test_the_block_falls_apart_at_three_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    said("Here is the block's end with three, as people leave them in their models:")
    monkeypatch.setattr(compilation.made, "BACKEND", "eager")
    cells = json.loads((PROJECT / "notebooks/day3_4_compile.ipynb").read_text())["cells"]
    (source,) = (text for cell in cells if "def block(" in (text := "".join(cell["source"])))
    known = {"torch": torch, "log": logging.getLogger("lab"), "tail": compilation.Tail(4).eval()}
    exec(source, known)
    versions = {str(n): lambda *both, n=n: known["block"](*both, mended=n) for n in range(4)}
    inputs = torch.randn(2, 2, 4, 8, 8).unbind()
    assert [*compilation.mended(versions, *inputs)["graphs"]] == [4, 3, 2, 1]
    expected = torch.relu(known["tail"].norm(inputs[0]) + inputs[1])
    assert all(torch.equal(version(*inputs), expected) for version in versions.values())


def test_new_shapes() -> None:
    table = compilation.shapes(H200).set_index(["course", "image_px", "images"])
    usual, fixed = (
        table[table["dynamic"].map(lambda each, kind=kind: each is kind)] for kind in (None, False)
    )
    growing, own = usual.loc["growing"], fixed.loc["growing"]
    said("The symbolic graph took 50 seconds, then nothing. Graphs of their own took 17 seconds")
    assert [round(each) for each in growing["first_s"]] == [23, 50, 0, 0]
    assert [round(each) for each in own["first_s"]] == [23, 17, 17, 17]
    said("For four sizes that is the same")
    assert growing["first_s"].sum() == pytest.approx(own["first_s"].sum(), rel=0.01)
    rows = compilation.recorded_part(H200, "shapes")["rows"]
    said("took 7.4, 10.9 and 7.3 ms a step in three measurements", BEHIND)
    fixed_px = [row["ms"] for row in rows if (row["course"], row["image_px"]) == ("growing", 128)]
    assert [round(each, 1) for each in fixed_px] == [7.4, 10.9, 7.3]
    said("and the symbolic one at 224 pixels 10.5 and 12.5", BEHIND)
    symbolic = [row["ms"] for row in rows if row["image_px"] == 224 and row["dynamic"] is None]
    assert [round(each, 1) for each in symbolic] == [10.5, 12.5]
    said("An epoch's last batch, 100 images instead of 256, cost 29 seconds.")
    assert round(usual.loc[("ending", 128, 100), "first_s"]) == 29
    assert torch._dynamo.config.recompile_limit == 8
    said("There is a limit, 8 graphs for one function.")
    said("The limit is 8, and only a warning tells.", QUIZ)


def test_when_it_has_paid() -> None:
    eager, compiled, again = (
        recorded()[name]
        for name in ("mode-eager-256", "mode-default-256", "mode-default-256-again")
    )
    said("took 47.9 seconds, 37.7 ms each of the later ones. Not compiled, it is 54.5 ms.")
    seconds = [compilation.compile_s(run) for run in (eager, compiled, again)]
    assert round(compiled.steps["step_s"].iloc[0], 1) == round(seconds[1], 1) == 47.9
    assert [round(run.record.step_s * 1e3, 1) for run in (compiled, eager)] == [37.7, 54.5]
    said("An epoch of ImageNet has 5,004 such steps")
    assert 1_281_167 // 256 == 5004
    steps = (eager.record.step_s, compiled.record.step_s)
    assert compilation.paid_after(seconds[1] - seconds[0], *steps) < 5004
    said("takes 1.4 seconds more than others, too")
    said("A second run begins with 5 seconds instead of 48")
    said("takes 5 seconds on the H200. Eager, it takes 1.4", BEHIND)
    assert [round(seconds[0], 1), round(seconds[2]), round(seconds[1])] == [1.4, 5, 48]
    said("Beyond the 80 recorded steps, the lines go on as before.")
    assert len(eager.steps) == len(compiled.steps) == 80


def test_modes_with_few_images() -> None:
    few, many = modes().loc[64], modes().loc[256]
    said("27 ms a step instead of 26, and single steps of either take 20 to 35")
    measured = [
        run.steps["step_s"][run.steps["step"] >= run.config.warmup_steps] * 1e3
        for run in (recorded()["mode-eager-64"], recorded()["mode-default-64"])
    ]
    assert round(min(map(min, measured))) == 20 and round(max(map(max, measured))) == 35
    said("from 24 to 28 ms eager, and from 27 to 31 compiled", BEHIND)
    quarters = [round(each.quantile(q)) for each in measured for q in (0.25, 0.75)]
    assert quarters == [24, 28, 27, 31]
    said("The CUDA graphs take the host away, and are 2.3 times as fast")
    assert round(few["images_per_s"]["reduce-overhead"] / few["images_per_s"]["eager"], 1) == 2.3
    said("a step takes 26.0 ms. Of these the GPU needs about 13.6, a quarter", BEHIND)
    assert round(many["step_ms"]["eager"] / 4, 1) == 13.6
    said("it needs 11.3 or less, as the CUDA graphs show, and yet a step takes 27.3 ms", BEHIND)
    assert [*few["step_ms"].round(1)] == [26.0, 27.3, 11.3]
    said("0.14 GiB of reserved memory with 64 images, beside the default mode; with 256, none")
    more = [
        of["reserved_gib"]["reduce-overhead"] - of["reserved_gib"]["default"] for of in (few, many)
    ]
    assert round(more[0], 2) == 0.14 and more[1] < 0


def test_losses_are_the_same_within_rounding() -> None:
    said("Over 80 steps the losses differ by less than 0.1 %.")
    both = recorded()["mode-default-256"], recorded()["mode-eager-256"]
    table = compilation.losses(*both)
    assert len(table) == 80 and 0 < table["difference"].abs().max() < 0.001


def test_the_last_rungs() -> None:
    said("on the H200, 4,697 images/s instead of 4,677")
    found = rungs(H200, "GPU")
    assert (round(found["fused"]), round(found["channels_last"])) == (4697, 4677)
