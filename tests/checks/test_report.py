"""Reports: numbers from records, ratios with their spread, pictures that can be drawn."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from course import compare, predict, recall, report, rung
from course.charts import plot_ladder
from course.checks import exercises
from course.checks.ladder import ladder
from course.checks.predictions import prediction
from course.checks.report import ladder_table
from course.cli import tables
from course.config import FULL_SIZE
from course.jobs.launch import JobError, launch
from course.runs.ratio import idle_gpu_warning, ratio
from course.runs.record import Record
from course.runs.recordings import recorded_runs
from course.runs.run import Run

# They depend on the 16-bit hardware of the CPU: make test-formats.
pytestmark = pytest.mark.formats

CONFIG = rung("baseline", quick=True)
STEADY, FAST = [1, 1, *[0.2] * 6], [1, 1, *[0.1] * 6]  # two steps of warm-up


@pytest.fixture
def saved() -> None:
    """Let reports save their picture: for a test that reads it from the run's folder."""


@pytest.fixture(autouse=True)
def not_saved(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip saving pictures that no test reads: drawing takes a quarter of a second."""
    if "saved" not in request.fixturenames:
        monkeypatch.setattr("course.checks.report._save", lambda *_: None)


@pytest.fixture
def make_run(runs_root: Path):
    """Return a function that writes a finished run with chosen step times, record and steps."""

    def make(
        name: str, step_s: list[float], config=CONFIG, together="", precision="", **fields
    ) -> Run:
        folder = runs_root / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(config.to_json())
        beside = {"together": [".", f"../{together}"]} if together else {}
        (folder / "launch.json").write_text(
            json.dumps({"rung": config.rung, "gpus": fields.get("gpus", 1)} | beside)
        )
        (folder / "train.py").write_text("print('hello')\n")
        rows = [{"step": i, "step_s": s, "loss": 1.0} for i, s in enumerate(step_s)]
        (folder / "steps.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        middle = sorted(step_s[config.warmup_steps :])[len(step_s[config.warmup_steps :]) // 2]
        speed = config.batch_size / middle
        values = {
            "step_s": middle,
            "images_per_s": speed,
            "images_per_s_q1": speed,
            "images_per_s_q3": speed,
            "peak_gib": 1.0,
            "first_loss": 1.0,
            "last_loss": 1.0,
            **fields,
        }
        computed = replace(config, precision=precision or config.precision)
        record = Record("ok", rung=config.rung, config=asdict(computed), **values)
        (folder / "record.json").write_text(json.dumps(record.to_values()))
        return Run(folder)

    return make


def test_ratio_is_of_throughput_and_drops_warm_up(make_run) -> None:
    slow = make_run("slow", [9.0, 9.0, 0.2, 0.2, 0.2])
    fast = make_run("fast", [9.0, 9.0, 0.1, 0.1, 0.1])
    speedup = ratio(fast, slow)
    assert (speedup.value, speedup.low, speedup.high) == pytest.approx((2, 2, 2))


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


def test_losses_stand_side_by_side_at_a_step_that_both_have(make_run) -> None:
    short, long = make_run("short", [1, 1, 0.2]), make_run("long", [1, 1, 0.2, 0.2, 0.2])
    rows = long.folder / "steps.jsonl"
    first, *others = rows.read_text().splitlines(keepends=True)
    rows.write_text(first + "".join(others).replace('"loss": 1.0', '"loss": 0.5'))
    shown = report(long, against=short).table.loc["loss, step 0 to 2"]
    assert list(shown) == ["1.000 to 1.000", "1.000 to 0.500"]


def test_report_shows_the_prediction_beside_the_measurement(make_run, saved) -> None:
    half = replace(CONFIG, rung="amp", precision="bf16")
    slow, fast = make_run("slow", STEADY), make_run("fast", FAST, half)
    shown = report(fast, against=slow, predicted=3)
    sentence = "You: 3. Measured: 2 (2 to 2) times as fast: 33% less than you predicted ✗"
    assert sentence in shown.sentences
    assert "data:image/png;base64," in shown._repr_html_()
    assert (fast.folder / "report.png").stat().st_size > 1000


def test_the_verdict_on_a_rung_is_kept(make_run) -> None:
    predict("amp", 2.1)
    half = replace(CONFIG, rung="amp", precision="bf16")
    slow, fast = make_run("slow", STEADY), make_run("fast", FAST, half)
    assert any(sentence.endswith("✓") for sentence in report(fast, against=slow).sentences)
    assert prediction("amp").measured == pytest.approx(2)


def test_a_prediction_is_for_one_process(make_run) -> None:
    predict("amp", 2)
    half = replace(CONFIG, rung="amp", precision="bf16")
    slow, fast = make_run("slow", STEADY), make_run("fast", FAST, half)
    request = json.loads((fast.folder / "launch.json").read_text())
    (fast.folder / "launch.json").write_text(json.dumps(request | {"gpus": 2}))
    assert not any(
        sentence.startswith("You: ") for sentence in report(fast, against=slow).sentences
    )
    assert prediction("amp").measured is None


def test_two_that_compute_the_same_have_a_true_ratio_of_one(make_run) -> None:
    """A prediction of 1 is right, whatever the noise."""
    slow, fast = make_run("slow", STEADY), make_run("fast", FAST)
    sentences = report(fast, against=slow, predicted=1).sentences
    assert "The same computation: the true ratio is 1." in sentences
    assert any(sentence.startswith("You: 1.") and sentence.endswith("✓") for sentence in sentences)
    moved = make_run("moved", [1, 1, 0.1], device="cuda")
    assert not any(
        "same computation" in sentence for sentence in report(moved, against=slow).sentences
    )


def test_scripts_that_differ_are_not_the_same_computation(make_run) -> None:
    """Not even with the same config; a comment or a blank line is no difference."""
    slow, fast = make_run("slow", STEADY), make_run("fast", FAST)
    fast.script.write_text("# faster?\n\nprint( 'hello' )\n")
    assert "The same computation: the true ratio is 1." in report(fast, against=slow).sentences
    fast.script.write_text("print('hullo')\n")
    sentences = report(fast, against=slow, predicted=2).sentences
    assert not any("same computation" in sentence for sentence in sentences)
    assert any(sentence.startswith("You: 2. Measured: 2") for sentence in sentences)
    assert any(sentence.endswith("✓") for sentence in sentences)


def test_two_versions_of_pytorch_are_not_the_same_computation(make_run) -> None:
    old = make_run("old", STEADY, versions={"torch": "2.10"})
    new = make_run("new", FAST, versions={"torch": "2.11"})
    assert not any("same computation" in text for text in report(new, against=old).sentences)


def test_a_recorded_site_says_that_it_ran_no_script_of_yours(tmp_path, capsys) -> None:
    (tmp_path / "mine.py").write_text("print('mine')\n")
    launch(tmp_path / "mine.py", rung("device", **FULL_SIZE), site="recorded-nvidia-h100")
    assert "It is a run of solutions/train.py, because no other" in capsys.readouterr().out
    launch("exercises/train.py", rung("device", **FULL_SIZE), site="recorded-nvidia-h100")
    assert "It is a run" not in capsys.readouterr().out


HALF = replace(CONFIG, rung="amp", precision="bf16")
NOISY_STEPS = [1, 1, 0.02, 0.5, 0.03, 0.4, 0.6, 0.02]


def test_a_single_measured_step_is_too_noisy_to_judge(make_run) -> None:
    predict("amp", 2)
    slow = make_run("slow", STEADY)
    fast = make_run("fast", [1, 1, 0.1], HALF, steps_measured=1, load=4.0)
    shown = report(fast, against=slow)
    reason = "1 measured step, where 6 are needed; the machine's load was 4.0 per core"
    assert f"Which is faster is too noisy to judge: {reason}." in shown.sentences
    assert shown.sentences[-1].startswith("You: 2. Measured: 2")
    assert shown.sentences[-1].endswith(f": too noisy to judge, {reason}")
    assert prediction("amp").measured is None
    assert shown.table.loc["images/s (quartiles)", "amp"] == "–"
    assert f"The speed is too noisy to judge: {reason}." in report(fast).sentences
    assert "too noisy to judge: 1 measured step" in repr(compare(slow, fast))


def test_a_recalled_speed_is_of_the_runs_site_and_not_of_noise(make_run, capsys) -> None:
    short = make_run("short", [1, 1, 0.1], steps_measured=1)
    steady, fast = make_run("steady", STEADY, steps_measured=6), make_run("fast", FAST)
    predict("speed", 40, rung="baseline")
    predict("twice", 2)
    recall("speed", 80.0, "images/s", run=short)
    assert "Measured: 80 images/s: too noisy to judge, 1 measured step" in capsys.readouterr().out
    assert prediction("speed").measured is None
    recall("speed", 40.0, "images/s", run=steady)
    recall("twice", ratio(fast, steady), "times the images/s", run=fast)
    assert capsys.readouterr().out.count("✓") == 2
    (h100,) = [run for run in recorded_runs("nvidia-h100") if run.name == "amp-1af58a68"]
    recall("speed", 2000.0, "images/s", run=h100)
    assert "You made no prediction. Measured: 2,000" in capsys.readouterr().out
    assert prediction("speed").measured == 40


def test_an_interval_with_faster_and_slower_earns_no_mark(make_run) -> None:
    noisy, steady = make_run("noisy", NOISY_STEPS, HALF, load=0.9), make_run("steady", STEADY)
    measured = ratio(noisy, steady)
    assert measured.low < 0.5 and measured.high > 2
    for predicted in (1.0, 2.0, measured.value):
        *_, sentence = report(noisy, against=steady, predicted=predicted).sentences
        assert sentence.endswith("too noisy to judge, the interval is wider than ± 20%")
    *_, sentence = report(noisy, against=steady, predicted=100).sentences
    assert sentence.endswith("✗")  # the interval rules it out
    text = "Which is faster is too noisy to judge: its interval has both slower and faster."
    assert text in report(noisy, against=steady).sentences
    assert "load" not in text  # no more processes than cores


def test_equal_speeds_are_not_noise(make_run) -> None:
    first, second = make_run("first", STEADY), make_run("second", STEADY, HALF)
    sentences = report(second, against=first, predicted=1).sentences
    assert not any("noisy" in sentence for sentence in sentences)
    assert sentences[-1].endswith("✓")


def test_a_prediction_is_for_one_site_and_one_format(make_run) -> None:
    """What was predicted for the CPU says nothing about an H100; nor bf16 about fp16."""
    h100 = "recorded-nvidia-h100"
    predict("amp", 1.1)
    predict("amp", 2.3, site=h100)
    predict("fp16", 3, rung="fp16", site=h100)
    runs = {
        precision: launch(
            "solutions/train.py", rung(label, precision=precision, **FULL_SIZE), site=h100
        )
        for label, precision in [("device", "fp32"), ("amp", "bf16"), ("amp", "fp16")]
    }
    for precision, predicted in [("bf16", 2.3), ("fp16", 3)]:
        *_, sentence = report(runs[precision], against=runs["fp32"]).sentences
        assert sentence.startswith(f"You: {predicted}. Measured: ")
    bf16, fp16 = prediction("amp", h100), prediction("fp16", h100)
    for entry, precision in [(bf16, "bf16"), (fp16, "fp16")]:
        assert entry.measured == ratio(runs[precision], runs["fp32"]).value
    assert prediction("amp").measured is None and not prediction("amp").stands
    assert bf16.stands and "amp on recorded-nvidia-h100" in repr(bf16)
    assert predict("amp", 2.25, site=h100).value == 2.3, "the result is known"
    assert predict("amp", 1.5).value == 1.5


def test_report_says_that_software_emulates_the_format(make_run) -> None:
    amp = replace(CONFIG, rung="amp", precision="bf16")
    without = make_run("amp1", [1, 1, 0.1], amp, hardware={"half_units": []}, machine="old CPU")
    with_units = make_run("amp2", [1, 1, 0.1], amp, hardware={"half_units": ["bf16"]})
    assert any("old CPU has no instructions for bf16" in s for s in report(without).sentences)
    assert not any("no instructions" in s for s in report(with_units).sentences)


def test_half_without_hardware_is_the_same_computation_in_fp32(make_run) -> None:
    half = replace(CONFIG, rung="amp", precision="half")
    computed = {"hardware": {"half_units": []}, "machine": "old CPU"}
    slow = make_run("slow", [1, 1, 0.2, 0.2], **computed)
    amp = make_run("amp1", [1, 1, 0.2, 0.1], half, precision="fp32", **computed)
    assert (amp.config.precision, amp.requested_config.precision) == ("fp32", "half")
    sentences = report(amp, against=slow, predicted=1).sentences
    assert "old CPU has no 16-bit hardware, so this run computed in fp32." in sentences
    assert "The same computation: the true ratio is 1." in sentences


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
    comparison = compare(a, b)
    assert list(comparison.settings.index) == ["precision"]
    assert "+print('hello <world>')" in comparison.source_diff
    assert "2×" in repr(comparison)
    page = comparison._repr_html_()
    assert "&lt;world&gt;" in page
    assert "color" in page


def test_the_printed_ladder_says_what_is_open_and_what_is_noise(make_run, capsys) -> None:
    plain = make_run("plain", [1, 1, 0.2], steps_measured=1)
    amp = make_run("amp", [1, 1, 0.1], HALF, hardware={"half_units": ["bf16"]})
    amp.script.write_text(
        exercises.render((exercises.SOLUTIONS / "train.py").read_text(), ["device"])
    )
    tables.show_ladder(ladder_table([plain, amp]))
    output = capsys.readouterr().out
    assert "baseline: too noisy to judge: 1 measured step, where 6 are needed." in output
    assert "amp: TODO amp is still open in this script, so it changed nothing." in output


def test_ladder_keeps_a_failed_rung_and_can_be_drawn(make_run, tmp_path: Path) -> None:
    good, bad = make_run("good", [1, 1, 0.2, 0.2]), make_run("bad", [1, 1, 0.1])
    (bad.folder / "record.json").write_text(json.dumps({"status": "oom"}))
    table = ladder_table([good, bad])
    assert list(table["status"]) == ["ok", "oom"]
    assert table["ratio"][0] == pytest.approx(1)
    plot_ladder(table).savefig(tmp_path / "ladder.png")
    assert (tmp_path / "ladder.png").stat().st_size > 1000


def test_the_printed_ladder_names_what_the_machine_lacks(make_run, capsys) -> None:
    amp = replace(CONFIG, rung="amp", precision="bf16")
    plain = make_run("plain", [1, 1, 0.2])
    without = make_run("without", [1, 1, 0.1], amp, hardware={"half_units": []}, machine="old CPU")
    with_units = make_run("with", [1, 1, 0.1], amp, hardware={"half_units": ["bf16"]})
    tables.show_ladder(ladder_table([plain, without]))
    assert "amp: this machine has no instructions for bf16" in capsys.readouterr().out
    half = replace(amp, precision="half")
    lacking = make_run("half", [1, 1, 0.2], half, precision="fp32", machine="old CPU")
    tables.show_ladder(ladder_table([plain, lacking]))
    output = capsys.readouterr().out
    assert "This machine has no 16-bit hardware. The rungs from amp on compute in fp32." in output
    tables.show_ladder(ladder_table([plain], {"device": "baseline"}).assign(lacks_half=True))
    output = capsys.readouterr().out
    assert "device    = baseline" in output
    assert "device: the same computation as baseline, so the true ratio is 1." in output
    tables.show_ladder(ladder_table([plain, with_units]).assign(turns=2))
    output = capsys.readouterr().out
    assert "no instructions" not in output
    assert "took 2 turns" in output and "the brackets have the extremes" in output
    tables.show_ladder(ladder_table([plain, with_units]).assign(turns=8))
    assert "extremes" not in capsys.readouterr().out


def test_reports_that_a_gpu_waits_for_python_or_for_images(make_run) -> None:
    large = replace(CONFIG, batch_size=256, image_px=224)
    for name, config, device, load_s, expected in [
        ("gpu", CONFIG, "cuda", 0.01, "Python may set the pace"),
        ("cpu", CONFIG, "cpu", 0.08, ""),
        ("big", large, "cuda", 0.01, ""),
        ("files", large, "cuda", 0.08, "waited for images in 80% of a step"),
    ]:
        run = make_run(name, [1, 1, 0.1], config, device=device, load_s=load_s)
        assert bool(idle_gpu_warning(run)) == bool(expected)
        assert expected in " ".join(report(run).sentences)
    other = make_run("workers", [1, 1, 0.1], replace(large, workers=2), device="cuda", load_s=0.08)
    assert not idle_gpu_warning(other, against=run)  # loading is what they compare


def test_report_says_that_a_todo_is_still_open_and_blames_no_hardware(make_run) -> None:
    amp = make_run(
        "amp3", [1, 1, 0.1], replace(CONFIG, rung="amp", device="auto", precision="bf16")
    )
    solution = (exercises.SOLUTIONS / "train.py").read_text()
    amp.script.write_text(exercises.render(solution, ["device"]))
    sentences = " ".join(report(amp).sentences)
    assert "TODO amp is still open" in sentences
    assert "TODO device is" not in sentences
    assert "emulates" not in sentences
    amp.script.write_text(solution)
    assert "still open" not in " ".join(report(amp).sentences)


def test_the_learners_ladder_grows_with_each_run(make_run) -> None:
    assert ladder().table["ratio"].isna().all() and not ladder().machine
    predict("device", 2)
    amp, last = (
        replace(CONFIG, rung=name, device="auto", precision="bf16", batch_size=16)
        for name in ("amp", "other")
    )
    make_run("first", [1, 1, *[0.4] * 6], started_at="1", machine="here")
    make_run("base", [1, 1, *[0.2] * 6], started_at="2", machine="here")
    device = replace(CONFIG, rung="device", device="auto")
    make_run("device", [1, 1, *[0.1] * 6], device, "base", started_at="3", machine="here")
    make_run("amp", [1, 1, *[0.02] * 6], amp, "device", started_at="4", machine="here")
    make_run(
        "pair", [1, 1, *[0.01] * 6], device, "device", started_at="7", gpus=2
    )  # has more ranks
    make_run(
        "alone", [1, 1, *[0.001] * 6], amp, started_at="5", machine="here"
    )  # did not take turns
    make_run("other", [1, 1, *[0.001] * 6], last, "amp", started_at="6")  # is on no rung
    result = ladder()
    rows = result.table.set_index("rung")
    assert rows.loc["baseline", "images_per_s"] == pytest.approx(CONFIG.batch_size / 0.2)
    assert list(rows.loc["device", ["predicted", "ratio"]]) == pytest.approx([2, 2])
    assert rows.loc["amp", "ratio"] == pytest.approx(10)
    assert rows["images_per_s"].isna()["channels_last"] and result.machine == "here"
    assert rows.loc["channels_last", "recorded_images_per_s"] > 3000
    text = repr(result)
    setup = f"(default data, {CONFIG.image_px} px, batch 16)"
    assert f"amp            800 images/s, 10× the previous rung {setup}" in text
    assert (
        f"device         {CONFIG.batch_size / 0.1:.0f} images/s, 2× the previous rung, you" in text
    )
    assert "channels_last  not yet: lab 1.5" in text
    assert 'alt="yours: here' in result._repr_mimebundle_()["text/html"]


def test_the_learners_ladder_counts_the_steps_that_wait_for_workers(make_run) -> None:
    last, loads = (replace(CONFIG, rung="channels_last"), replace(CONFIG, rung="dataloader"))
    make_run("last", [1, 1, *[0.4] * 4], last, started_at="1")
    make_run("loads", [1, 1, 0.7, *[0.1] * 3], replace(loads, workers=4), "last", started_at="2")
    rows = ladder().table.set_index("rung")
    assert rows.loc["dataloader", "images_per_s"] == pytest.approx(CONFIG.batch_size / 0.25)


def test_the_learners_ladder_shows_a_rung_that_equals_a_skipped_one(make_run) -> None:
    last = rung("channels_last", quick=True)
    make_run("base", [1, 1, *[0.2] * 6], started_at="1")
    make_run("last", [1, 1, *[0.1] * 6], last, "base", precision="fp32", started_at="2")
    assert ladder().table.set_index("rung").loc["channels_last", "ratio"] == pytest.approx(2)
    small = replace(last, batch_size=1)
    make_run("small", [1, 1, *[0.1] * 6], small, "base", precision="fp32", started_at="3")
    assert ladder().table.set_index("rung").loc["channels_last", "ratio"] == pytest.approx(2)
