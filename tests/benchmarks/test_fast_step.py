"""docs/performance.md says of the algebra what an H100 measured."""

import json
from math import isfinite
from pathlib import Path
from statistics import median

import pytest
import torch
from cases import for_all
from fast_step import on_gpu

from course.runs.record import Record
from course.runs.recordings import recorded_runs
from course.runs.run import PROJECT
from course.topics import fast_step

FOLDER = PROJECT / "benchmarks" / "fast_step"
PAGE = " ".join((PROJECT / "docs" / "performance.md").read_text().split())
KEYS = ("images_per_s", "joules_per_image")
WAYS = {"eager": (1, 0.121), "compile": (1.22, 0.111), "fast": (1.78, 0.079)}


def rows(name: str, record: str, **fields: object) -> list[dict]:
    lines = (FOLDER / name).read_text().splitlines()
    kept = [each for each in map(json.loads, lines) if each["record"] == record]
    return [each for each in kept if fields.items() <= each.items()]


@for_all("way", WAYS)
def test_speed_and_energy(way: str) -> None:
    found = rows("measured_h100.jsonl", "speed", way=way, dtype="fp16")
    speed, joules = (median(row[key] for row in found) for key in KEYS)
    ends = (
        min(row["images_per_s_low"] for row in found),
        max(row["images_per_s_high"] for row in found),
    )
    ratio = speed / fast_step.measured()["images_per_s"]["eager"]
    assert (round(ratio, 2), round(joules, 3)) == WAYS[way]
    told = f"{speed:,.0f} ({ends[0]:,.0f} to {ends[1]:,.0f})"
    ending = f"{WAYS[way][0]} | {WAYS[way][1]}"
    assert f"{told} | {ending}" in PAGE.replace("**", ""), (told, ending)


def test_of_the_table_above_it_is_told_that_its_losses_are_sound() -> None:
    """A run on NaN is fast: the pair that is named is the pair of the table."""
    assert "eager, the algebra, compiled, the algebra, eager: CUDA events" in PAGE
    found = rows("measured_h100.jsonl", "speed", dtype="fp16")
    assert [row["way"] for row in found] == ["eager", "fast", "compile", "fast", "eager"]
    assert all(isfinite(loss) for row in found for loss in [*row["losses"], row["last_loss"]])
    pair = fast_step.measured()["images_per_s"]
    assert f"first table, {pair['eager']:,.0f} and {pair['compile']:,.0f}, has sound" in PAGE


def test_joules_of_both_times() -> None:
    found = rows("measured_h100.jsonl", "speed", way="fast", dtype="fp16")
    assert "0.079 (0.077, 0.080)" in PAGE.replace("**", "")
    assert [f"{row['joules_per_image']:.3f}" for row in found] == ["0.077", "0.080"]


def test_ranks_agree() -> None:
    told = (FOLDER / "ranks_h100_x2.txt").read_text().splitlines()
    assert "after each of eight steps" in PAGE and len(told) == 8
    assert all(line.endswith("equal gradients: True") for line in told)


def test_in_bf16_and_at_the_walls() -> None:
    speed = {
        way: median(r["images_per_s"] for r in rows("measured_h100.jsonl", "speed", **about))
        for way, about in {
            "fast": {"way": "fast", "dtype": "bf16"},
            "eager": {"way": "eager", "dtype": "bf16"},
        }.items()
    }
    said = f"In bf16 it made {speed['fast']:,.0f} images a second, and eager {speed['eager']:,.0f}"
    assert said in PAGE
    fast = fast_step.measured().loc["fast"]
    assert "| power, 700 W at 0.079 J an image | 8,880 | at 99 %" in PAGE
    wall = 700 / fast["joules_per_image"]
    assert round(wall, -1) == 8880 and round(100 * fast["images_per_s"] / wall) == 99
    assert "217 MB of the algebra | 13,900 | at 63 %" in PAGE
    assert round(100 * fast["images_per_s"] / 13_900) == 63
    watts = [row["watts"] for row in rows("measured_h100.jsonl", "speed", way="fast", dtype="fp16")]
    assert "The card drew 676 and 704 W" in PAGE and [*map(round, watts)] == [676, 704]


def test_gradients() -> None:
    for measure, name in (("median", "median"), ("worst", "worst")):
        values = [
            rows("measured_h100.jsonl", "gradients", way=way, dtype=f"torch.{half}")[0][measure]
            for half in ("float16", "bfloat16")
            for way in ("autocast", "fast in graphs")
        ]
        assert f"| {name} | " + " | ".join(f"{each:.3f}" for each in values) + " |" in PAGE


def test_how_soon_it_is_ready() -> None:
    first, tuned, other = rows("ready_h100.jsonl", "speed")
    assert (first["dtype"], tuned["dtype"], other["dtype"]) == ("fp16", "fp16", "bf16")
    assert [row["compiled"][0]["kernels"] for row in (first, tuned, other)] == [63, 189, 63]
    assert {row["compiled"][0]["threads"] for row in (first, tuned, other)} == {16}
    assert "Ready in 20 s" in PAGE and "Its 63 kernels are compiled" in PAGE
    assert "none compiled took 20 s on an H100" in PAGE and round(first["ready_s"]) == 20
    started = rows("ready_h100.jsonl", "machine")[0]["imports_s"]
    assert f"twelfth step (its imports, {started:.0f} s, came before)" in PAGE
    assert "19 s in bf16, and 27 s where it timed all tiles anew, which are 189 kernels" in PAGE
    assert [round(row["ready_s"]) for row in (other, tuned)] == [19, 27]
    before, after = rows("measured_h100.jsonl", "speed", way="fast", dtype="fp16")
    assert "it had been 57 s" in PAGE and round(before["ready_s"]) == 57
    assert "A second network in the same process is ready in 1 s." in PAGE
    assert round(after["ready_s"]) == 1


def test_on_an_h200() -> None:
    eager, ours = {}, {}
    for half in ("fp16", "bf16"):
        for kept, way in ((eager, "eager"), (ours, "fast")):
            found = [
                each
                for each in rows("measured_h200.jsonl", "speed", way=way, dtype=half)
                if not each["compiled"] or each["compiled"][0]["kernels"] < 189
            ]
            kept[half] = [median(each[key] for each in found) for key in KEYS]
    compiled = rows("measured_h200.jsonl", "speed", way="compile")[0]
    told = PAGE.replace("**", "")
    for name, each in (("eager", eager), ("the algebra", ours)):
        (fp16, fp16_j), (bf16, bf16_j) = each["fp16"], each["bf16"]
        assert f"| {name} | {fp16:,.0f} | {fp16_j:.3f} | {bf16:,.0f} | {bf16_j:.3f} |" in told
    ending = f"| {compiled['images_per_s']:,.0f} | {compiled['joules_per_image']:.3f} | – | – |"
    assert ending in told
    said = f"On an H200 it makes {ours['fp16'][0]:,.0f} in fp16 and {ours['bf16'][0]:,.0f} in bf16"
    assert said in told
    (tuned,) = [
        each
        for each in rows("measured_h200.jsonl", "speed", way="fast", dtype="fp16")
        if each["compiled"][0]["kernels"] == 189
    ]
    assert "ready in 23 s, with all tiles timed anew" in told and round(tuned["ready_s"]) == 23


def recorded(rung: str, precision: str) -> Record:
    runs = recorded_runs("nvidia-h200", "throughput")
    (found,) = [
        run.record for run in runs if (run.record.rung, run.config.precision) == (rung, precision)
    ]
    return found


def test_it_is_fed() -> None:
    speeds = {
        name: rows("fed_h200.jsonl", "run", rung=f"algebra-{name}")[0]["images_per_s"]
        for name in ("synthetic", "raw", "gpu_decode")
    }
    shares = {name: speed / speeds["synthetic"] for name, speed in speeds.items()}
    assert min(shares.values()) > 0.95
    told = f"{speeds['raw']:,.0f} images/s from `raw` ({100 * shares['raw']:.1f} % of the "
    assert told + f"{speeds['synthetic']:,.0f} that it makes of synthetic images)" in PAGE
    told = f"and {speeds['gpu_decode']:,.0f} from JPEG files that the GPU decodes "
    assert told + f"({100 * shares['gpu_decode']:.1f} %)" in PAGE


def test_two_gpus() -> None:
    one, two = (
        rows("scaling_h100_x2.jsonl", "run", rung="algebra", gpus=gpus)[0]["images_per_s"]
        for gpus in (1, 2)
    )
    assert round(1e3 * (512 / two - 256 / one), 1) == 1.2  # ms, as ranks.py has it
    told = f"Two H100s train {two:,.0f} images/s in bf16 where one trains {one:,.0f}, an efficiency"
    assert f"{told} of {50 * two / one:.1f} %" in PAGE


def test_the_first_layer() -> None:
    found = {
        (row["dtype"], row["channels"]): row
        for row in map(json.loads, (FOLDER / "first_layer_h100.jsonl").read_text().splitlines())
    }
    for key, name in (
        (("float16", 3), "fp16, 3 channels"),
        (("float16", 4), "fp16, a fourth of zeros"),
        (("bfloat16", 4), "bf16, 4 channels"),
        (("bfloat16", 16), "bf16, 2 × 2 pixels as 16 channels"),
    ):
        row = found[key]
        assert f"| {name} | {row['forward_ms']:.2f} | {row['gradient_ms']:.2f} |" in PAGE
    saved = found["bfloat16", 4]["forward_ms"] - found["float16", 4]["forward_ms"]
    speeds = rows("measured_h100.jsonl", "speed", way="fast", dtype="bf16")
    step_ms = 1e3 * 256 / median(each["images_per_s"] for each in speeds)
    assert f"{saved:.1f} ms of an H100's step of {step_ms:.1f}" in PAGE
    ahead = saved / (step_ms - saved)
    after, fp16 = (recorded("algebra", half).images_per_s for half in ("bf16", "fp16"))
    (bf16, half) = (
        rows("first_layer_in_bf16_h200.jsonl", "run", precision=each)[0]["images_per_s"]
        for each in ("bf16", "fp16")
    )
    before = bf16 / half
    assert f"fp16 made {half:,.0f} images/s on the first card, and" in PAGE
    assert "4.6 % more images/s. Measured" in PAGE and round(100 * ahead, 1) == 4.6
    assert (
        f"{before:.3f} and {after / fp16:.3f}, {100 * (after / fp16 / before - 1):.1f} % more"
        in PAGE
    )
    more = 100 * (after / fp16 / before - 1)
    told = f"the first layer in fp16 (above) | {100 * ahead:.1f} % more images/s | {more:.1f} % |"
    assert told in PAGE
    assert (
        f"{fp16:,.0f} on the second, at {recorded('algebra', 'fp16').joules_per_image:.3f} J"
        in PAGE
    )


class Clock:
    """CUDA's events, where there are none."""

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None: ...

    def synchronize(self) -> None: ...

    def elapsed_time(self, _: object) -> float:
        return 5.0


def test_the_first_layers_benchmark_has_a_row_for_each_that_was_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One image on the CPU, whose times are made up."""
    pytest.importorskip("triton", reason="the timer is that of kernels in Triton")
    from fast_step import first_layer

    for name, value in {"DEVICE": "cpu", "BATCH": 1, "TIMES": 1}.items():
        monkeypatch.setattr(first_layer, name, value)
    monkeypatch.setattr(torch.cuda, "Event", Clock)
    first_layer.main()
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    kept = map(json.loads, (FOLDER / "first_layer_h100.jsonl").read_text().splitlines())
    times = {"forward_ms": 5.0, "gradient_ms": 5.0}
    assert told == [each | times for each in kept]


def test_the_products_that_were_measured_are_the_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="a benchmark of kernels in Triton")
    monkeypatch.syspath_prepend(FOLDER)  # as where it is run
    from fast_step import power

    keys = ("pixels", "depth", "columns", "times")
    for kind in ("fp16", "fp8"):
        found = rows("power_h100.jsonl", "product", kind=kind)
        assert sorted(tuple(row[key] for key in keys) for row in found) == sorted(
            (*shape, times) for shape, times in power.convolutions().items()
        )


def test_what_is_left_has_more_in_it_than_the_chips_inside() -> None:
    """Products for G and z B, of [pixels, depth] with itself and with [depth, depth]: of all ends
    of blocks, and of four shortcuts."""
    ends = ((3136, 64, 3), (784, 128, 4), (196, 256, 6), (49, 512, 3))
    ends += ((3136, 64, 1), (784, 256, 1), (196, 512, 1), (49, 1024, 1))
    more = sum(times * 2 * 2 * pixels * depth**2 for pixels, depth, times in ends)
    (fp16,) = rows("power_h100.jsonl", "fp16")
    told = f"multiplies {100 * more / 24.3e9:.0f} % more, for G and z B: "
    assert told + f"{1e3 * more * fp16['flop_j']:.1f} mJ" in PAGE
    found = rows("power_h100.jsonl", "product", kind="fp16")
    fast, slow = (
        sorted(each["joules"] / each["predicted_j"] for each in found if is_one(each["mhz"]))
        for is_one in (lambda mhz: mhz == 1980, lambda mhz: mhz < 1500)
    )
    assert f"taken at {fp16['mhz']:,} MHz" in PAGE
    told = f"at 1,980 MHz cost {fast[0]:.2f} to {fast[-1]:.2f} times what the prices say, "
    assert told + f"and those below 1,500 MHz {slow[0]:.2f} to {slow[-1]:.2f}." in PAGE
    most = max(each["watts"] for each in rows("power_h100.jsonl", "product"))
    assert f"by it a product drew {most:.0f} W of the 700" in PAGE
    (step,) = rows("power_h100.jsonl", "step", way="fast", dtype="fp16")
    shares = [step[f"{part}_j"] / step["joules"] for part in ("memory", "products", "idle")]
    assert "a quarter is memory, less than a third products, a sixth an idle GPU's" in PAGE
    assert [*map(round, shares[::2], (2, 2))] == [0.24, 0.18] and 0.25 < shares[1] < 1 / 3
    (before,) = rows("first_layer_in_bf16_h200.jsonl", "run", precision="bf16")
    joules = before["joules_per_image"], recorded("algebra", "bf16").joules_per_image
    told = "an image cost {:.3f} J on one H200 before, and {:.3f} on another after"
    assert told.format(*joules) in PAGE


def test_where_the_joules_go() -> None:
    (idle,), (memory,), (fp16,), (fp8,) = (
        rows("power_h100.jsonl", name) for name in ("idle", "memory", "fp16", "fp8")
    )
    assert f"Idle, it draws {idle['watts']:.0f} W" in PAGE
    assert f"costs {1e12 * memory['byte_j']:.0f} pJ more" in PAGE
    told = f"drew {memory['watts']:.0f} W at {memory['bytes_per_s'] / 1e12:.2f} TB/s"
    assert told in PAGE
    assert f"A FLOP in fp16 costs {1e12 * fp16['flop_j']:.2f} pJ" in PAGE
    assert f"and {1e12 * fp8['flop_j']:.2f} in fp8" in PAGE
    assert f"{fp16['watts']:.0f} W at {fp16['mhz']:,} MHz" in PAGE
    costs = []
    for way, name in (("eager", "eager"), ("fast", "the algebra")):
        (step,) = rows("power_h100.jsonl", "step", way=way, dtype="fp16")
        parts = [step[key] for key in ("idle_j", "memory_j", "products_j")]
        cells = [*parts, step["joules"] - sum(parts), step["joules"]]
        costs.append(cells)
        told = " | ".join(f"{1e3 * cell:.1f}" for cell in cells)
        assert f"| {name}, {step['images_per_s']:,.0f} images/s | {told} |" in PAGE
    idle_mj, bytes_mj, _, within_mj, all_mj = (1e3 * (a - b) for a, b in zip(*costs))
    assert f"Of the {all_mj:.1f} mJ that the algebra saves, {bytes_mj:.1f} are bytes" in PAGE
    assert f"{within_mj:.1f} are within the chip" in PAGE
    assert f"and {idle_mj:.1f} are an idle GPU's" in PAGE
    assert f"{step['mhz']:,} MHz, and drew {step['watts']:.0f} W" in PAGE
    wall = 700 / step["joules"]
    assert f"At its {1e3 * step['joules']:.1f} mJ, 700 W would be {wall:,.0f} images" in PAGE
    assert f"at {100 * step['images_per_s'] / wall:.0f} % of that" in PAGE
    half, eighth = (rows("power_h100.jsonl", "products", kind=kind)[0] for kind in ("fp16", "fp8"))
    told = " | ".join(
        f"{1e3 * half[key]:.1f} → {1e3 * eighth[key]:.1f} mJ" for key in ("predicted_j", "joules")
    )
    saved = half["joules"] - eighth["joules"]
    assert f"{told} | {1e3 * saved:.1f} mJ of {1e3 * step['joules']:.1f}, 3 %" in PAGE
    assert round(100 * saved / step["joules"]) == 3
    assert f"{1e3 * 1e7 * memory['byte_j']:.1f} mJ for each 10 MB" in PAGE
    told = f"all 217 MB are {1e3 * step['memory_j']:.0f} of {1e3 * step['joules']:.1f} mJ"
    assert told in PAGE


@pytest.mark.parametrize("part", ["fp16", "tiles"])
def test_a_part_of_another_file_is_no_part_of_this_one(
    part: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nor is something else recorded in its place."""
    asked = []
    monkeypatch.setattr(on_gpu, "record", lambda *what: asked.append(what))
    monkeypatch.setattr("sys.argv", ["on_gpu.py", str(tmp_path), "--part", part])
    with pytest.raises(SystemExit):
        on_gpu.main()
    assert not asked
    assert "'records', 'parity', 'fed', 'scaling'" in capsys.readouterr().err
