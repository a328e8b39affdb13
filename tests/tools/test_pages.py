"""What pages show of recorded runs: written from them, and noticed when it is not so any more."""

import gzip
import json
import os
import re
import shutil
import statistics
from dataclasses import replace
from functools import cache
from pathlib import Path

import pandas as pd
import pytest
from node_helpers import COPIED, copied_node
from PIL import Image

from course.race.published import ANCHORS
from course.runs import recordings
from course.runs.run import RECORDED, Run
from course.topics.scaling import node
from course.workshop import estimate, record
from tools.pages import __main__ as pages
from tools.pages import day2, day3, eight, memory, readme, waterfall
from tools.pages.waterfall_picture import waterfall as draw

SEVERAL = "nvidia-h200-x4"
DAY_2 = [
    place
    for place in readme.PLACES
    if isinstance(place, readme.Block)
    and place.name in ("ladder of Day 2", "scaling", "cost of DDP", "messages", "short epochs")
]
PICTURE = next(place for place in readme.PLACES if isinstance(place, readme.Waterfall))


def test_the_pages_and_the_picture_are_those_of_the_recorded_runs() -> None:
    assert readme.write(check=True) == [], "python -m tools.pages writes them anew"


def test_the_peaks_tell_of_what_fitted_and_what_did_not() -> None:
    shown = memory.peaks("nvidia-h100")
    assert "| fp32 | 2048 | out of 79.2 | 165.57 | 86.4 more than there is |" in shown
    assert "recorded 20" in shown and "4 that did not fit, 4 were told not to" in shown


@cache
def ladder() -> str:
    return readme.table("nvidia-h100")


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the README as the only place that is written."""
    path = tmp_path / "README.md"
    path.write_text((readme.PROJECT / "README.md").read_text())
    block = readme.Block(path, "ladder", ladder)
    monkeypatch.setattr(readme, "PLACES", [block])
    return path


@pytest.mark.slow
def test_a_typed_number_is_noticed_and_mended(page: Path) -> None:
    right = page.read_text()
    page.write_text(wrong := right.replace("| amp bf16 | 2", "| amp bf16 | 3"))
    with pytest.raises(SystemExit, match="runs say any more: the ladder in README.md. Run"):
        pages.main(check=True)
    assert page.read_text() == wrong != right
    assert readme.write() == ["the ladder in README.md"]
    assert page.read_text() == right and readme.write(check=True) == []


def test_a_page_without_a_place_says_what_it_needs(page: Path) -> None:
    page.write_text("no place for it")
    with pytest.raises(ValueError, match="README.md needs the lines .*end of the ladder"):
        readme.write()


@pytest.mark.slow
def test_a_picture_without_its_data_is_stale(tmp_path: Path) -> None:
    copy = readme.Waterfall(tmp_path / PICTURE.path.name, PICTURE.machine)
    assert not copy.write(check=True) and not copy.path.exists()
    with Image.open(PICTURE.path) as shown:
        shown.save(copy.path)  # the same pixels, and no word about where they are from
    assert not copy.write(check=True)
    copy.path.write_text("no picture")
    assert not copy.write(check=True)
    assert not copy.write() and copy.write(check=True)
    os.utime(copy.path, (0, 0))
    assert copy.write() and copy.path.stat().st_mtime == 0  # what is right is not drawn again


def test_a_pictures_word_changes_with_what_is_shown_and_no_more() -> None:
    table = pd.DataFrame({"machine": ["a GPU"], "images_per_s": [5684.474666275121]})
    word = readme.digest([table], "bars")
    assert (
        word
        == readme.digest([table * 1], "bars")
        == readme.digest([table.assign(images_per_s=5684.48)], "bars")
    )
    others = [
        readme.digest([table.assign(images_per_s=5685.6)], "bars"),
        readme.digest([table.assign(machine="a GPU (recorded later)")], "bars"),
        readme.digest([table], "pies"),
    ]
    assert len({word, *others}) == 4


@pytest.fixture(scope="module")
def steps() -> pd.DataFrame:
    return waterfall.steps("nvidia-h100")


@pytest.fixture(scope="module")
def walls() -> pd.DataFrame:
    return waterfall.walls("nvidia-h100")


def words(axes) -> str:
    names = [label.get_text() for label in axes.get_xticklabels()]
    texts = [text.get_text() for text in axes.texts]
    return "\n".join([axes.get_title(loc="left"), *names, *texts])


def test_each_bar_stands_on_the_one_before_it(steps, walls) -> None:
    (axes,) = draw(steps, walls).axes
    below = 0.0
    bars = [bar for container in axes.containers for bar in container]
    for bar, speed in zip(bars, steps["images_per_s"], strict=True):
        assert bar.get_y() == pytest.approx(below)
        below = bar.get_y() + bar.get_height()
        assert below == pytest.approx(speed)


def test_the_picture_says_what_where_and_when(steps, walls) -> None:
    picture = draw(steps, walls)
    (axes,) = picture.axes
    said = words(axes)
    for word in (
        "device to compile: NVIDIA H100 80GB HBM3 (recorded 20",
        "baseline: Intel(R) Xeon",
        "algebra: NVIDIA H100 80GB HBM3 (recorded 20",
        "batch 256",
        "algebra\nbf16",
        "baseline\nfp32",
    ):
        assert word in said
    for row in steps.itertuples():
        assert f"{row.images_per_s:,.0f}" in said or f"{row.images_per_s:.1f}" in said
    for row in walls.itertuples():
        assert f"{row.wall}: {row.cost} an image" in said
    picture.draw_without_rendering()
    boxes = [text.get_window_extent() for text in axes.texts if text.get_text()]
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])


def test_a_rung_of_another_day_gets_a_line_of_its_own(steps, walls) -> None:
    mixed = steps.assign(machine=steps["machine"].mask(steps["rung"].eq("amp"), "another GPU"))
    said = words(draw(mixed, walls).axes[0])
    assert "device: NVIDIA" in said and "amp: another GPU" in said
    assert "channels_last to compile: NVIDIA" in said


def rows_of(text: str) -> list[list[str]]:
    """The cells of a table in Markdown, without its head."""
    lines = [line for line in text.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def saved(gpus: int, batch_size: int, name: str) -> Path:
    """The folder of the one run that is named by its rung, GPUs and batch: nothing of `course`."""
    found = [
        path.parent
        for path in (RECORDED / SEVERAL).glob(f"{name}-????????/config.json")
        if json.loads(path.read_text())["batch_size"] == batch_size
        and json.loads((path.parent / "record.json").read_text())["gpus"] == gpus
    ]
    (folder,) = found
    return folder


def steps_of(folder: Path, rank: int = 0) -> list[dict]:
    """The measured steps of a rank, as they lie in its file."""
    packed = folder / (f"steps-{rank}.jsonl.gz" if rank else "steps.jsonl.gz")
    lines = gzip.decompress(packed.read_bytes()).decode().splitlines()
    warm = json.loads((folder / "config.json").read_text())["warmup_steps"]
    return [each for each in map(json.loads, lines) if each["step"] >= warm]


def speed_of(folder: Path, middle=statistics.median) -> float:
    batch = json.loads((folder / "config.json").read_text())["batch_size"]
    return batch / middle(each["step_s"] for each in steps_of(folder))


def watts_of(folder: Path) -> float:
    files = sorted(folder.glob("rank-*.json")) or [folder / "record.json"]
    return sum(json.loads(path.read_text())["watts"] for path in files)


@pytest.mark.slow
@pytest.mark.parametrize("block", DAY_2, ids=lambda block: block.name)
def test_any_number_of_day_2_that_is_changed_is_noticed(tmp_path: Path, block) -> None:
    page, made = tmp_path / "page.md", block.make()
    place = replace(block, page=page, make=lambda: made)
    begin, end = (
        f"<!-- {block.name}: python -m tools.pages writes it -->\n",
        f"<!-- end of the {block.name}",
    )
    before, _, rest = block.page.read_text().partition(begin)
    inside, _, after = rest.partition(end)
    figures = [found.start() for found in re.finditer(r"\d", inside)]
    for at in (figures[0], figures[len(figures) // 2], figures[-1]):
        other = str((int(inside[at]) + 1) % 10)
        page.write_text(before + begin + inside[:at] + other + inside[at + 1 :] + end + after)
        assert not place.write(check=True)
    assert not place.write() and page.read_text() == block.page.read_text()


def test_five_places_show_day_2() -> None:
    assert len(DAY_2) == 5


@pytest.fixture(scope="module")
def of_day_2() -> list[list[str]]:
    return rows_of(day2.ladder("nvidia-h200", SEVERAL))


def test_the_ladder_of_day_2_has_speed_efficiency_and_joules_of_the_files(of_day_2) -> None:
    shown = {(row[0], row[2]): row[3:7] for row in of_day_2}
    cases = [("channels_last", gpus, 256, statistics.median) for gpus in (1, 2, 4)]
    cases += [(name, 4, 256, statistics.median) for name in ("compile", "algebra")]
    cases += [("dataloader", 4, 64, statistics.mean)]
    for name, gpus, each, middle in cases:
        one, folder = saved(1, each, name), saved(gpus, each * gpus, name)
        speed, watts = speed_of(folder, middle), watts_of(folder)
        efficiency = speed / gpus / speed_of(one, middle)
        wanted = [
            f"{speed:,.0f}",
            f"{efficiency:.1%}".replace("100.0", "100"),
            f"{watts:,.0f}",
            f"{watts / speed:.3f}",
        ]
        assert shown.pop((name, f"{gpus} × H200")) == wanted
    assert list(shown) == [("dataloader", "1 × H200")]  # of lab 2.1, from files


def test_feeding_is_that_of_all_steps_beside_synthetic_data(of_day_2) -> None:
    loading = {(row[0], row[1]): row for row in rows_of(day2.loading("nvidia-h200"))}
    both = [row for row in of_day_2 if row[-1] == "2.1"]
    names = [("channels_last", "0"), ("dataloader", "8")]
    for row, key in zip(both, names, strict=True):
        name, wanted = key[0], loading[key]
        (folder,) = (
            path.parent
            for path in (RECORDED / "nvidia-h200").glob(f"{name}-*/launch.json")
            if json.loads(path.read_text())["purpose"] == "loading"
        )
        seconds = statistics.mean(step["step_s"] for step in steps_of(folder))
        assert row[3] == wanted[2] == f"{256 / seconds:,.0f}"
        assert f"{float(row[4].rstrip('%')):.0f}%" == wanted[3]
        speed = float(row[3].replace(",", ""))
        watts = float(row[5].replace(",", ""))
        assert float(row[6]) == pytest.approx(watts / speed, rel=0.006)


def test_all_runs_that_scale_are_shown_with_their_intervals() -> None:
    rows = rows_of(day2.scales(SEVERAL))
    known = [
        run
        for run in recordings.recorded_runs(SEVERAL)
        if run.config.rung in day2.SCALED and not run.record.trace
    ]
    assert len(rows) == len(known) == 14
    for name, gpus, each, speed, share, step_ms, *_ in rows:
        folder = saved(int(gpus), int(gpus) * int(each), name)
        seconds = statistics.median(step["step_s"] for step in steps_of(folder))
        assert step_ms == f"{seconds * 1e3:.1f}"
        value, *ends = [float(number) for number in re.findall(r"[\d.]+(?=%)", share)]
        if gpus == "1" or name == "dataloader":  # nothing to compare with; batches in bursts
            assert not ends
        else:
            assert ends[0] <= value <= ends[1] and ends[0] < ends[1]
            one = speed_of(saved(1, int(each), name))
            assert value == pytest.approx(
                100 * float(speed.replace(",", "")) / int(gpus) / one, abs=0.06
            )


def test_the_wait_at_the_beginning_of_an_epoch_is_that_of_all_ranks() -> None:
    for row, gpus in zip(rows_of(day2.epochs(SEVERAL)), (1, 2, 4), strict=True):
        folder = saved(gpus, 64 * gpus, "dataloader")
        in_epoch = 1024 // 64 // gpus  # drop_last; the default set has so many training images
        ranks = [steps_of(folder, rank) for rank in range(gpus)]
        firsts = [
            step["load_s"] for steps in ranks for step in steps if step["step"] % in_epoch == 0
        ]
        others = [step["load_s"] for steps in ranks for step in steps if step["step"] % in_epoch]
        first_s = statistics.mean(firsts)
        epoch_s = in_epoch * statistics.mean(step["step_s"] for step in ranks[0])
        rest_s = statistics.median(step["step_s"] - step["load_s"] for step in ranks[0])
        assert row == [
            str(gpus),
            str(in_epoch),
            f"{epoch_s:.2f}",
            f"{first_s:.2f}",
            f"{sum(others) / len(firsts):.2f}",
            f"{first_s / epoch_s:.0%}",
            f"{64 / first_s:.0f}",
            f"{rest_s * 1e3:.0f}",
        ]


def test_the_wait_of_a_rank_that_is_slow_counts(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(saved(2, 128, "dataloader"), folder)
    path = folder / "steps-1.jsonl.gz"
    steps = map(json.loads, gzip.decompress(path.read_bytes()).decode().splitlines())
    slow = "\n".join(json.dumps(each | {"load_s": 3 * each["load_s"]}) for each in steps)
    path.write_bytes(gzip.compress(slow.encode()))
    wait_s = statistics.mean(
        step["load_s"]
        for rank in (0, 1)
        for step in steps_of(folder, rank)
        if step["step"] % 8 == 0
    )
    assert wait_s > 0.8 and day2._epoch(Run(folder))[3] == f"{wait_s:.2f}"


EIGHT = readme.PERFORMANCE.read_text().partition('<a id="eight-gpus-predicted"></a>')[2]
EIGHT = EIGHT.partition('<a id="jpeg-files')[0]


def test_eight_gpus_are_predicted_and_a_node_that_is_not_recorded_is_a_dash() -> None:
    rows = {row[0]: row[1:] for row in rows_of(eight.table("abacus"))}
    assert rows["compile"][2] == "94.9% (93.0% to 96.0%)"
    assert {cell for name in ("compile", "algebra") for cell in rows[name][3:]} == {"–"}
    published = [row[3] for name, row in rows.items() if name.startswith("[MLPerf v4.0]")]
    assert published == ["63,599", "57,295"]
    assert "compile-gpu_decode" not in rows


def test_a_recorded_node_gets_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = rows_of(day2.ladder())
    copied_node(tmp_path / "recorded", monkeypatch)
    text = eight.table()
    assert f"Measured: {COPIED}, recorded 20" in text and "by `a test`" in text
    rows = {row[0]: row[1:] for row in rows_of(text)}
    assert rows["compile"][3:5] == ["51,509", "94.8%"]  # those of four, as if there were twice
    assert rows["compile-gpu_decode"][:3] == ["–"] * 3 and "–" not in rows["compile-gpu_decode"][3:]
    assert rows["algebra"][4] == "100.0%"  # that of one, copied
    added = [row for row in rows_of(day2.ladder()) if row not in before]
    assert [(row[0], row[2], row[-1]) for row in added] == [
        ("channels_last", "8 × H200", "2.3"),
        ("compile", "8 × H200", "3.4"),
        ("algebra", "8 × H200", "A"),
    ]
    assert COPIED in day2.ladder()


def test_what_is_said_of_the_fastest_of_four() -> None:
    fastest = {}
    for run in recordings.recorded_runs(SEVERAL, "scaling"):
        if (run.record.gpus, run.config.batch_size) == (4, 1024):
            fastest[run.config.rung] = run.record.images_per_s
    more = fastest["compile"] / fastest["channels_last"], fastest["algebra"] / fastest["compile"]
    told = "still trains {:.0f} % more images a second than `channels_last`, and the algebra {:.0f}"
    assert told.format(*(100 * each - 100 for each in more)) in readme.PERFORMANCE.read_text()


def test_what_is_said_of_the_prediction() -> None:
    said = node.predicted().set_index("rung")
    assert "fitted to traces of two and four H200s: 0.15 ms" in EIGHT
    assert round(said.loc["compile", "exposed_ms"], 2) == 0.15
    assert "0.9 ms of the eager step and 1.9 ms of the compiled one" in EIGHT
    assert said.loc[["channels_last", "compile"], "own_ms"].round(1).tolist() == [0.9, 1.9]
    alone = node.written()["replaced_run"]
    names = ("alone_images_per_s", "alone_images_per_s_low", "alone_images_per_s_high")
    ratios = [said.loc["algebra", name] / alone["images_per_s"] for name in names]
    assert "1.06 to 1.27 times as fast, in the median 1.18" in EIGHT
    assert [f"{each:.2f}" for each in ratios] == ["1.18", "1.06", "1.27"]
    assert "so it should train 9,424 images/s" in EIGHT
    assert round(said.loc["algebra", names[0]]) == 9424
    since = recordings.ladders("nvidia-h200")["GPU"]["algebra", "bf16"].images_per_s
    assert f"(One has made [{since:,.0f}](#beside-a-younger-gpu) since" in EIGHT
    assert "the H100 drew 683 of its 700 W" in EIGHT and round(alone["watts"]) == 683
    assert "about eight minutes by `--list`" in EIGHT
    assert round(sum(estimate.seconds(record.plan(gpus=8))) / 60) == 8
    assert "so a rung above 63,599" in EIGHT.lower() and node.PUBLISHED[0].images_per_s == 63_599
    for figure in (anchor.time for anchor in ANCHORS if "MLPerf" in anchor.what):
        assert f"35 epochs in {figure}utes on eight H100s" in EIGHT


def test_what_ddp_costs_is_what_the_benchmark_wrote(tmp_path: Path) -> None:
    lines = [json.loads(line) for line in readme.DDP.read_text().splitlines()]
    rows = {row[0]: row[1:] for row in rows_of(day2.ddp_costs(readme.DDP))}
    assert list(rows) == list(dict.fromkeys(line["variant"] for line in lines))
    for line in lines:
        step_ms, share = rows[line["variant"]][2 * line["compiled"] :][:2]
        assert step_ms == f"{line['step_ms'][1]:.1f}"
        assert share.startswith("100%" if line["variant"] == "alone" else f"{line['ratio'][1]:.1%}")
    for name, kept in (("eager", lines[:4]), ("two machines", [*lines, lines[0] | {"ranks": 2}])):
        file = tmp_path / name
        file.write_text("\n".join(map(json.dumps, kept)))
        with pytest.raises(ValueError, match="one run of benchmarks/ddp.py"):
            day2.ddp_costs(file)


def test_messages_are_those_of_the_traces_on_most_gpus() -> None:
    rows = {row[0]: row for row in rows_of(day2.messages(SEVERAL))}
    assert list(rows)[:3] == [f"buckets of {size} MB" for size in (1, 25, 100)]
    for name, row in rows.items():
        rung = re.sub(r"buckets of (\d+) MB", r"channels_last-bucket_mb-\1.0", name)
        seconds = statistics.median(step["step_s"] for step in steps_of(saved(4, 1024, rung)))
        assert row[-1] == f"{seconds * 1e3:.1f}"
        assert float(row[2]) == pytest.approx(4 * 25.6, rel=0.01)  # MB: fp32 of all weights
        assert 0 < float(row[4]) < float(row[5])
    # Two for each of the 53 layers, beside the four buckets and the two that send the buffers.
    assert int(rows["sync_batchnorm"][1]) == int(rows["buckets of 25 MB"][1]) + 2 * 53


def test_a_machine_without_several_gpus_is_refused() -> None:
    for shows in (day2.scales, day2.epochs, day2.messages):
        with pytest.raises(ValueError, match="on several GPUs is .*recorded on nvidia-h100"):
            shows("nvidia-h100")


def test_formats_of_day_3_are_those_of_all_measured_steps() -> None:
    rows = rows_of(day3.formats("nvidia-h200"))
    by_name = {(row[0], row[2]): row for row in rows}
    assert by_name["synthetic", "–"][4] == "100.0%"
    (run,) = (
        run
        for run in recordings.recorded_runs("nvidia-h200", "formats")
        if run.config.rung == "gpu_decode-4"
    )
    steps = run.steps[run.config.warmup_steps :]
    mean = run.config.batch_size / steps["step_s"].mean()
    assert by_name["gpu_decode", "4"][3] == f"{mean:,.0f}"
    assert [row[1] for row in rows if row[0] == "raw"] == ["nobody"] * 2
    assert not any("alone" in row[0] for row in rows)
    with pytest.raises(ValueError, match="synthetic images beside formats: none on nvidia-h100"):
        day3.formats("nvidia-h100")
