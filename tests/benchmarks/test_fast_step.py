"""docs/performance.md says of the algebra what GPUs measured."""

import inspect
import json
import re
from math import isfinite
from pathlib import Path
from statistics import median

import ddp
import pytest
import torch
from cases import for_all
from fast_step import on_gpu

from course.runs.record import Record
from course.runs.recordings import recorded_runs
from course.runs.run import PROJECT
from course.topics import fast_step
from course.training import recorder

FOLDER = PROJECT / "benchmarks" / "fast_step"
PAGE = " ".join((PROJECT / "docs" / "performance.md").read_text().split())
KEYS = ("images_per_s", "joules_per_image")
WAYS = {"eager": (1, 0.124), "compile": (1.22, 0.110), "fast": (1.77, 0.078)}


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
    ending = f"{WAYS[way][0]} | {WAYS[way][1]:.3f}"
    assert f"{told} | {ending}" in PAGE.replace("**", ""), (told, ending)


def test_of_the_table_above_it_is_told_that_its_losses_are_sound() -> None:
    """A run on NaN is fast: the pair that is named is the pair of the table."""
    assert "eager, the algebra, compiled, the algebra, eager: CUDA events" in PAGE
    found = rows("measured_h100.jsonl", "speed", dtype="fp16")
    assert [row["way"] for row in found] == ["eager", "fast", "compile", "fast", "eager"]
    assert all(isfinite(loss) for row in found for loss in [*row["losses"], row["last_loss"]])
    pair = fast_step.measured()["images_per_s"]
    assert f"first table, {pair['eager']:,.0f} and {pair['compile']:,.0f}, has sound" in PAGE


def test_ranks_agree() -> None:
    told = (FOLDER / "ranks_h200_x4.txt").read_text().splitlines()
    assert "after each of eight steps" in PAGE and len(told) == 8
    assert all("159 gradients, equal on all ranks: True; " in line for line in told)
    far = [re.search(r"; (\S+) from the mean, this rank's own (\S+)$", line) for line in told]
    assert "none of the 159 that the algebra sends itself was further than 6e-8" in PAGE
    assert max(float(each[1]) for each in far) < 5.5e-8  # rounded to a digit
    assert min(float(each[2]) for each in far) > 1


def test_in_bf16_and_at_the_walls() -> None:
    speed = {
        way: median(r["images_per_s"] for r in rows("measured_h100.jsonl", "speed", **about))
        for way, about in {
            "fast": {"way": "fast", "dtype": "bf16"},
            "eager": {"way": "eager", "dtype": "bf16"},
        }.items()
    }
    said = f"In bf16 it makes {speed['fast']:,.0f} images a second, and eager {speed['eager']:,.0f}"
    assert f"{said}: {speed['fast'] / speed['eager']:.2f} times as many" in PAGE
    fast = fast_step.measured().loc["fast"]
    assert "| power, 700 W at 0.078 J an image | 8,950 | at 98 %" in PAGE
    wall = 700 / fast["joules_per_image"]
    assert round(wall, -1) == 8950 and round(100 * fast["images_per_s"] / wall) == 98
    assert "217 MB of the algebra | 13,900 | at 63 %" in PAGE
    assert round(100 * fast["images_per_s"] / 13_900) == 63
    watts = [row["watts"] for row in rows("measured_h100.jsonl", "speed", way="fast", dtype="fp16")]
    assert "The card drew 685 W of its 700, both times" in PAGE
    assert [*map(round, watts)] == [685, 685]


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
    before, _ = rows("first_layer_in_bf16_h100.jsonl", "speed", dtype="fp16")
    assert [row["compiled"][0]["kernels"] for row in (first, tuned, other)] == [63, 189, 63]
    assert {row["compiled"][0]["threads"] for row in (first, tuned, other)} == {16}
    assert "Ready in 20 s" in PAGE and "Its 63 kernels are compiled" in PAGE
    warm, after = rows("measured_h100.jsonl", "speed", way="fast", dtype="fp16")
    assert warm["compiled"][0]["kernels"] == 63 and warm["compiled"][0]["threads"] == 16
    assert "twelfth step 12 s after it made" in PAGE and round(warm["ready_s"]) == 12
    assert "and 20 s if not; there" in PAGE and round(first["ready_s"]) == 20
    started = rows("ready_h100.jsonl", "machine")[0]["imports_s"]
    assert f"shared the cores, and its imports, {started:.0f} s, came before" in PAGE
    assert "tiles timed anew, which are 189 kernels, it took 27 s" in PAGE
    assert round(tuned["ready_s"]) == 27
    assert "it had been [57 s](" in PAGE and round(before["ready_s"]) == 57
    assert "A second network in the same process is ready in 1 s." in PAGE
    assert round(after["ready_s"]) == 1


def test_on_an_h200() -> None:
    told = PAGE.replace("**", "")
    steps = {
        (way, half): rows("power_h200.jsonl", "step", way=way, dtype=half)[0]
        for way in ("eager", "fast")
        for half in ("fp16", "bf16")
    }
    for way, name in (("eager", "eager"), ("fast", "the algebra")):
        cells = [
            f"{steps[way, half]['images_per_s']:,.0f} | {steps[way, half]['joules']:.3f}"
            for half in ("fp16", "bf16")
        ]
        assert f"| {name} | {' | '.join(cells)} |" in told
    fp16, bf16 = (steps["fast", half] for half in ("fp16", "bf16"))
    watts = f"draws {fp16['watts']:.0f} and {bf16['watts']:.0f} W of the 700"
    shares = [round(each["watts"] / 7) for each in (fp16, bf16)]
    assert f"{watts}, so power is the wall here too, at {shares[0]} and {shares[1]} %" in told
    (tuned,) = [
        each
        for each in rows("measured_h200.jsonl", "speed", way="fast", dtype="fp16")
        if each["compiled"][0]["kernels"] == 189
    ]
    assert "ready in 23 s, with all tiles timed anew" in told and round(tuned["ready_s"]) == 23


def test_h200s_differ() -> None:
    """The slowest and the fastest of all that were measured, by whatever benchmark."""
    alone = {
        (way, half): median(
            each["images_per_s"]
            for each in rows("measured_h200.jsonl", "speed", way=way, dtype=half)
            if not each["compiled"] or each["compiled"][0]["kernels"] < 189
        )
        for way, half in (
            ("eager", "fp16"),
            ("compile", "fp16"),
            ("fast", "fp16"),
            ("fast", "bf16"),
        )
    }
    eager, compiled, fp16, bf16 = (f"{each:,.0f}" for each in alone.values())
    told = f"{eager} images/s by eager steps in fp16, {compiled} compiled and {fp16} by the algebra"
    assert f"{told}, and another {bf16} in bf16" in PAGE
    runs = [
        *recorded_runs("nvidia-h200", "throughput"),
        *recorded_runs("nvidia-h200-x4", "scaling"),
    ]
    for half in ("fp16", "bf16"):
        found = [alone["fast", half], rows("power_h200.jsonl", "step", way="fast", dtype=half)[0]]
        found[1] = found[1]["images_per_s"]
        found += [
            run.record.images_per_s
            for run in runs
            if (run.record.rung, run.config.precision, run.record.gpus) == ("algebra", half, 1)
        ]
        assert f"{min(found):,.0f} to {max(found):,.0f} in {half}" in PAGE, (half, found)


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


def test_four_gpus() -> None:
    runs = [run.record for run in recorded_runs("nvidia-h200-x4", "scaling")]
    speed = {run.gpus: run.images_per_s for run in runs if run.rung == "algebra"}
    told = f"Four H200s train {speed[4]:,.0f} images/s in bf16, at "
    assert told + f"{100 * speed[4] / (4 * speed[1]):.1f} % of four times one" in PAGE
    one, four = (
        rows("scaling_h200_x4.jsonl", "run", precision="fp16", gpus=gpus)[0]["images_per_s"]
        for gpus in (1, 4)
    )
    told = f"and {four:,.0f} in fp16, at {100 * four / (4 * one):.1f} % of four times {one:,.0f}"
    assert told in PAGE


def test_what_sharing_costs() -> None:
    """The variants are those of the benchmark, in its order."""
    path = PROJECT / "benchmarks" / "ddp_algebra_h200_x4.jsonl"
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert [each["variant"] for each in found] == [*ddp.ALGEBRA]
    told = PAGE.replace("**", "")
    for each in found:
        low, share, high = each["ratio"]
        spread = f" ({low:.1%} to {high:.1%})" if high > low else ""
        share = f"{share:.1%}" if spread else "100%"
        assert f"| {each['variant']} | {each['step_ms'][1]:.2f} | {share}{spread} |" in told
    ms = {each["variant"]: each["step_ms"][1] for each in found}
    alone, buckets, own, first, _, last = ms.values()
    told = f"Its own pieces save {buckets - own:.1f} ms of DDP's {buckets - alone:.1f}"
    assert told in PAGE.replace("**", "")
    assert f"still it takes {last - alone:.1f} ms longer than alone" in PAGE
    assert f"that does not first, costs {own - last:.1f} ms more" in PAGE
    assert "0.1 ms longer without" in inspect.getsource(recorder) and round(own - first, 1) == 0.1
    assert (first - alone) / (buckets - alone) < 0.5


def in_bf16(name: str) -> tuple[float, float]:
    """Seconds of a step, and its images/s of those in fp16."""
    bf16, fp16 = (
        median(each["images_per_s"] for each in rows(name, "speed", way="fast", dtype=half))
        for half in ("bf16", "fp16")
    )
    return 256 / bf16, bf16 / fp16


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
    before_s, earlier = in_bf16("first_layer_in_bf16_h100.jsonl")
    _, later = in_bf16("measured_h100.jsonl")
    step_ms = 1e3 * before_s
    assert f"{saved:.1f} ms of an H100's step of [{step_ms:.1f}](" in PAGE
    more_h100 = 100 * (later / earlier - 1)
    assert f"another after, {earlier:.3f} and {later:.3f}, {more_h100:.1f} % more" in PAGE
    ahead = saved / (step_ms - saved)
    after, fp16 = (recorded("algebra", half).images_per_s for half in ("bf16", "fp16"))
    (bf16, half) = (
        rows("first_layer_in_bf16_h200.jsonl", "run", precision=each)[0]["images_per_s"]
        for each in ("bf16", "fp16")
    )
    before = bf16 / half
    (third,) = rows("scaling_h200_x4.jsonl", "run", precision="fp16", gpus=1)
    told = f"fp16 made {half:,.0f} images/s on one, {third['images_per_s']:,.0f} on another, and"
    assert told in PAGE
    assert "4.6 % more images/s. Measured" in PAGE and round(100 * ahead, 1) == 4.6
    assert (
        f"{before:.3f} and {after / fp16:.3f}, {100 * (after / fp16 / before - 1):.1f} % more"
        in PAGE
    )
    more = 100 * (after / fp16 / before - 1)
    told = f"the first layer in fp16 (above) | {100 * ahead:.1f} % more images/s | "
    told += f"{more_h100:.1f} and {more:.1f} % |"
    assert told in PAGE
    assert (
        f"{fp16:,.0f} on a third, at {recorded('algebra', 'fp16').joules_per_image:.3f} J" in PAGE
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
        for is_one in (lambda mhz: mhz >= 1965, lambda mhz: mhz < 1500)
    )
    assert f"taken at {fp16['mhz']:,} MHz" in PAGE
    told = f"at 1,965 MHz or more cost {fast[0]:.2f} to {fast[-1]:.2f} times what the prices say, "
    assert told + f"and those below 1,500 MHz {slow[0]:.2f} to {slow[-1]:.2f}." in PAGE
    most = max(each["watts"] for each in rows("power_h100.jsonl", "product"))
    assert f"by it a product drew {most:.0f} W of the 700" in PAGE
    (step,) = rows("power_h100.jsonl", "step", way="fast", dtype="fp16")
    shares = [step[f"{part}_j"] / step["joules"] for part in ("memory", "products", "idle")]
    assert "a quarter is memory, less than a third products, a fifth an idle GPU's" in PAGE
    assert [*map(round, shares[::2], (2, 2))] == [0.24, 0.19] and 0.25 < shares[1] < 1 / 3
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
    told = f"drew {step['watts']:.0f} W, and its clock had come down to {step['mhz']:,} of 1,980"
    assert told in PAGE
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
