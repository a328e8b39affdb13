"""Reports: numbers from records, ratios with their spread, pictures that can be drawn."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from course import compare, ladder, plots, report, rung
from course.cli import tables
from course.jobs.launch import JobError
from course.labs import exercises
from course.runs.ratio import held_by_host, ratio
from course.runs.record import Record
from course.runs.run import Run

CONFIG = rung("baseline", quick=True)


@pytest.fixture
def make_run(runs_root: Path):
    """A run that is over, with chosen step times; only its record and steps matter here."""

    def make(name: str, step_s: list[float], config=CONFIG, **fields) -> Run:
        folder = runs_root / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(config.to_json())
        (folder / "launch.json").write_text(json.dumps({"rung": config.rung}))
        (folder / "train.py").write_text("print('hello')\n")
        rows = [{"step": i, "step_s": s, "loss": 1.0} for i, s in enumerate(step_s)]
        (folder / "steps.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        middle = sorted(step_s[config.warmup_steps :])[len(step_s[config.warmup_steps :]) // 2]
        speed = config.batch_size / middle
        values = {
            "images_per_s": speed,
            "images_per_s_q1": speed,
            "images_per_s_q3": speed,
            "peak_gib": 1.0,
            "first_loss": 1.0,
            "last_loss": 1.0,
            **fields,
        }
        record = Record("ok", rung=config.rung, config=asdict(config), **values)
        (folder / "record.json").write_text(json.dumps(asdict(record)))
        return Run(folder)

    return make


def test_ratio_is_of_throughput_and_drops_warm_up(make_run) -> None:
    slow = make_run("slow", [9.0, 9.0, 0.2, 0.2, 0.2])
    fast = make_run("fast", [9.0, 9.0, 0.1, 0.1, 0.1])
    found = ratio(fast, slow)
    assert (found.value, found.low, found.high) == pytest.approx((2, 2, 2))


def test_interval_widens_with_the_spread_of_steps(make_run) -> None:
    steady = make_run("steady", [1, 1, *[0.20, 0.20, 0.20, 0.21, 0.19, 0.20]])
    noisy = make_run("noisy", [1, 1, *[0.10, 0.30, 0.15, 0.28, 0.20, 0.20]])
    again = make_run("again", [1, 1, *[0.20, 0.20, 0.20, 0.21, 0.19, 0.20]])
    narrow, wide = ratio(again, steady), ratio(noisy, steady)
    assert wide.low < narrow.low < 1 < narrow.high < wide.high


def test_ratio_of_other_batch_sizes_counts_images(make_run) -> None:
    small = make_run("small", [1, 1, 0.1, 0.1])
    large = make_run("large", [1, 1, 0.1, 0.1], replace(CONFIG, batch_size=16))
    assert ratio(large, small).value == pytest.approx(2)


def test_report_shows_the_prediction_beside_the_measurement(make_run) -> None:
    slow, fast = make_run("slow", [1, 1, 0.2, 0.2]), make_run("fast", [1, 1, 0.1, 0.1])
    shown = report(fast, against=slow, predicted=3)
    assert any("You predicted 3×; it is 2×" in sentence for sentence in shown.sentences)
    assert "data:image/png;base64," in shown._repr_html_()
    assert (fast.folder / "report.png").stat().st_size > 1000


def test_report_says_that_software_imitates_the_format(make_run) -> None:
    amp = replace(CONFIG, rung="amp", precision="bf16")
    without = make_run("amp1", [1, 1, 0.1], amp, hardware={"half_units": []}, machine="old CPU")
    with_units = make_run("amp2", [1, 1, 0.1], amp, hardware={"half_units": ["bf16"]})
    assert any("old CPU has no instructions for bf16" in s for s in report(without).sentences)
    assert not any("no instructions" in s for s in report(with_units).sentences)


def test_report_says_when_the_loss_is_not_finite(make_run) -> None:
    diverged = make_run("diverged", [1, 1, 0.1], last_loss=None)
    assert any("learns nothing" in sentence for sentence in report(diverged).sentences)


def test_report_of_a_run_that_failed_is_its_error(make_run) -> None:
    run = make_run("broken", [1, 1, 0.1])
    (run.folder / "record.json").write_text(json.dumps({"status": "failed", "error": "no luck"}))
    with pytest.raises(JobError, match="no luck"):
        report(run)


def test_compare_shows_settings_source_and_ratio(make_run) -> None:
    a = make_run("a", [1, 1, 0.2, 0.2])
    b = make_run("b", [1, 1, 0.1, 0.1], replace(CONFIG, precision="bf16"))
    b.script.write_text("print('hello <world>')\n")
    found = compare(a, b)
    assert list(found.settings.index) == ["precision"]
    assert "+print('hello <world>')" in found.source_diff
    assert "2×" in repr(found)
    page = found._repr_html_()
    assert "&lt;world&gt;" in page
    assert "color" in page


def test_ladder_keeps_a_failed_rung_and_can_be_drawn(make_run, tmp_path: Path) -> None:
    good, bad = make_run("good", [1, 1, 0.2, 0.2]), make_run("bad", [1, 1, 0.1])
    (bad.folder / "record.json").write_text(json.dumps({"status": "oom"}))
    table = ladder([good, bad])
    assert list(table["status"]) == ["ok", "oom"]
    assert table["ratio"][0] == pytest.approx(1)
    plots.ladder(table).savefig(tmp_path / "ladder.png")
    assert (tmp_path / "ladder.png").stat().st_size > 1000


def test_the_printed_ladder_says_what_software_imitates(make_run, capsys) -> None:
    amp = replace(CONFIG, rung="amp", precision="bf16")
    plain = make_run("plain", [1, 1, 0.2])
    without = make_run("without", [1, 1, 0.1], amp, hardware={"half_units": []}, machine="old CPU")
    with_units = make_run("with", [1, 1, 0.1], amp, hardware={"half_units": ["bf16"]})
    tables.show_ladder(ladder([plain, without]))
    assert "amp: this machine has no instructions for bf16" in capsys.readouterr().out
    tables.show_ladder(ladder([plain, with_units]).assign(turns=2))
    said = capsys.readouterr().out
    assert "no instructions" not in said
    assert "2 of them" in said and "in brackets are the extremes" in said
    tables.show_ladder(ladder([plain, with_units]).assign(turns=8))
    assert "extremes" not in capsys.readouterr().out


def test_a_gpu_with_little_to_do_is_said_to_wait_for_python(make_run) -> None:
    large = replace(CONFIG, batch_size=256, image_px=224)
    for name, config, device, held in [
        ("gpu", CONFIG, "cuda", True),
        ("cpu", CONFIG, "cpu", False),
        ("big", large, "cuda", False),
    ]:
        run = make_run(name, [1, 1, 0.1], config, device=device)
        assert bool(held_by_host(run)) == held
        assert ("Python may set the pace" in " ".join(report(run).sentences)) == held


def test_report_says_that_a_todo_is_still_open_and_blames_no_hardware(make_run) -> None:
    amp = make_run(
        "amp3", [1, 1, 0.1], replace(CONFIG, rung="amp", device="auto", precision="bf16")
    )
    solution = (exercises.SOLUTIONS / "train.py").read_text()
    amp.script.write_text(exercises.render(solution, 1))
    said = " ".join(report(amp).sentences)
    assert "TODO 2 is still open" in said
    assert "TODO 1 is" not in said
    assert "imitates" not in said
    amp.script.write_text(solution)
    assert "still open" not in " ".join(report(amp).sentences)
