"""docs/performance.md says of the algebra what an H100 measured."""

import json
from math import isfinite
from pathlib import Path
from statistics import median

import pytest
from cases import for_all
from fast_step import on_gpu

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
    said = f"In bf16 it makes {speed['fast']:,.0f} images a second, and eager {speed['eager']:,.0f}"
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
    assert "Ready in 20 s" in PAGE and round(first["ready_s"]) == 20
    started = rows("ready_h100.jsonl", "machine")[0]["imports_s"]
    assert f"twelfth step (its imports, {started:.0f} s, came before)" in PAGE
    assert "19 s in bf16, and 27 s where it timed all tiles anew, which are 189 kernels" in PAGE
    assert [round(row["ready_s"]) for row in (other, tuned)] == [19, 27]
    before, after = rows("measured_h100.jsonl", "speed", way="fast", dtype="fp16")
    assert "it had been 57 s" in PAGE and round(before["ready_s"]) == 57
    assert "A second network in the same process is ready in 1 s." in PAGE
    assert round(after["ready_s"]) == 1


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
    assert "'records', 'parity', 'fed', 'ranks', 'scaling'" in capsys.readouterr().err
