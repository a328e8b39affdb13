"""Predictions that can no longer change, a store that loses nothing, and its tables."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from course.__main__ import app
from course.checks import discovery, exercises
from course.checks.predictions import predict, prediction, recall
from course.checks.progress import progress
from course.checks.quizzes import paths
from course.checks.shared_progress import save_answer, save_check
from course.checks.store import changing, path, read
from course.runs import clone
from course.widgets.quiz import quiz

PASSED = dict.fromkeys(("correct", "mechanism", "effect"), "passed")
CEILINGS = ("memory", "compute")
UNMEASURABLE = {**PASSED, "effect": "not measurable here"}


@pytest.fixture(autouse=True)
def empty_store(runs_root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(clone, "look_for_update", lambda: str)  # whatever this clone has fetched
    return runs_root


def pretend_launched(runs_root: Path, rung: str) -> None:
    """Write those files of a launch that predictions read."""
    folder = runs_root / f"{rung}-abc"
    folder.mkdir(parents=True)
    (folder / "launch.json").write_text(json.dumps({"rung": rung}))


class TestPrediction:
    def test_is_kept_with_its_note(self) -> None:
        predict("amp", 2.0, "half the bits")
        entry = prediction("amp")
        assert (entry.value, entry.note, entry.rung) == (2.0, "half the bits", "amp")
        assert " ".join(repr(entry).split()) == (
            "You predicted 2 for amp (half the bits). "
            "You can change it until you launch a run of amp."
        )

    def test_changes_before_a_run_and_not_after(
        self, runs_root: Path, capsys: pytest.CaptureFixture
    ) -> None:
        predict("amp", 2.0)
        assert predict("amp", 3.0).value == 3
        assert capsys.readouterr().out == ""
        pretend_launched(runs_root, "amp")
        kept = predict("amp", 1.7)
        assert kept.value == prediction("amp").value == 3
        assert kept.stands and not kept.late
        assert capsys.readouterr().out == (
            "amp: your 3 counts because a run of amp was launched; 1.7 is not stored.\n"
        )
        assert repr(kept) == "You predicted 3 for amp. It is stored, right or wrong."

    def test_after_a_run_says_so(self, runs_root: Path) -> None:
        pretend_launched(runs_root, "amp")
        entry = predict("amp", 2.7)
        assert entry.late
        assert repr(entry) == "You predicted 2.7 for amp, after a run of amp was launched."

    def test_of_another_key_is_settled_by_the_rung_it_names(self, runs_root: Path) -> None:
        predict("amp_memory", 11.0, rung="amp")
        assert predict("amp_memory", 12.0, rung="amp").value == 12
        pretend_launched(runs_root, "amp")
        assert predict("amp_memory", 13.0, rung="device").value == 12

    def test_of_a_question_stands_from_the_first(self, capsys: pytest.CaptureFixture) -> None:
        assert predict("ceiling", "memory", choices=CEILINGS).stands
        assert predict("side", " m ", choices=("M", "N")).value == "M"
        assert predict("ceiling", "compute", choices=CEILINGS).value == "memory"
        assert "your memory counts because it was the first" in capsys.readouterr().out

    def test_blank_stores_nothing_and_asks(self, capsys: pytest.CaptureFixture) -> None:
        assert predict("amp", ...) is None
        assert capsys.readouterr().out.startswith("amp: replace ... with your number")
        assert not path().exists()
        predict("amp", 2)
        assert predict("amp", ...).value == 2

    def test_takes_the_numbers_of_numpy_and_in_quotes(self) -> None:
        assert predict("amp", np.float32(2.5)).value == predict("compile", "2.5").value == 2.5
        assert predict("device", np.int64(3)).text == "3"
        assert json.loads(path().read_text())["predictions"]["device"]["value"] == 3

    @pytest.mark.parametrize("value", [float("nan"), "fast", None, True])
    def test_refuses_what_is_no_prediction(self, value: object) -> None:
        with pytest.raises(ValueError, match="your prediction for amp is .*a finite number"):
            predict("amp", value)
        assert prediction("amp") is None

    @pytest.mark.parametrize("value", ["maybe", 3])
    def test_refuses_what_is_no_choice(self, value: object) -> None:
        with pytest.raises(ValueError, match='choose "memory" or "compute", in quotes'):
            predict("ceiling", value, choices=CEILINGS)
        assert prediction("ceiling") is None

    @pytest.mark.parametrize(
        "predicted, measured, text",
        [
            (2, 2, "You: 2. Measured: 2 GiB ✓"),
            (2, 2.3, "You: 2. Measured: 2.3 GiB: 15% more than you predicted ✓"),
            (2, 2.002, "You: 2. Measured: 2 GiB: as you predicted ✓"),
            (2, 1.5, "You: 2. Measured: 1.5 GiB: 25% less than you predicted ✗"),
            (1, 40, "You: 1. Measured: 40 GiB: 40 times your prediction ✗"),
            (40, 1, "You: 40. Measured: 1 GiB: 1/40 of your prediction ✗"),
            (0, 3, "You: 0. Measured: 3 GiB ✗"),
            (0, 0, "You: 0. Measured: 0 GiB ✓"),
        ],
    )
    def test_a_number_gets_a_verdict(
        self, predicted: float, measured: float, text: str, capsys: pytest.CaptureFixture
    ) -> None:
        predict("peak", predicted)
        recall("peak", measured, "GiB")
        assert capsys.readouterr().out == f"{text}\n"
        assert prediction("peak").measured == measured

    def test_a_choice_gets_a_verdict(self, capsys: pytest.CaptureFixture) -> None:
        predict("ceiling", "memory", choices=CEILINGS)
        recall("ceiling", "compute", "790 TFLOP/s")
        text = "You: memory. Measured: compute, 790 TFLOP/s ✗\n"
        assert capsys.readouterr().out == text
        recall("ceiling", "memory")
        assert capsys.readouterr().out.endswith("Measured: memory ✓\n")

    def test_without_a_prediction_the_answer_is_shown(self, capsys: pytest.CaptureFixture) -> None:
        recall("peak", 3.25, "GiB")
        assert capsys.readouterr().out == "You made no prediction. Measured: 3.25 GiB\n"
        recall("peak", 3.25, "GiB", how="Computed")
        assert "Computed: 3.25 GiB" in capsys.readouterr().out
        assert prediction("peak") is None

    def test_an_answer_of_another_kind_is_refused(self) -> None:
        predict("peak", 2)
        with pytest.raises(ValueError, match="expected two numbers or two texts"):
            recall("peak", "yes")
        assert prediction("peak").measured is None

    @pytest.mark.parametrize("key", ["", " ", 3])
    def test_needs_a_key(self, key: object) -> None:
        with pytest.raises(ValueError, match="key of a prediction"):
            predict(key, 2.0)


class TestStore:
    def test_two_processes_at_once_lose_nothing(self, runs_root: Path) -> None:
        script = (
            "import sys; from course.checks.predictions import predict\n"
            "from course.checks.shared_progress import save_answer\n"
            "for n in range(1, 31):\n"
            "    save_answer(sys.argv[1], n, 'a', True); predict(sys.argv[1] + str(n), n)"
        )
        both = [subprocess.Popen([sys.executable, "-c", script, name]) for name in ("x", "y")]
        assert [process.wait(60) for process in both] == [0, 0]
        store = read()
        assert {name: len(answers) for name, answers in store["answers"].items()} == {
            "x": 30,
            "y": 30,
        }
        assert len(store["predictions"]) == 60

    @pytest.mark.parametrize(
        ("content", "problem"),
        [
            ('{"schema": 1, "predic', "Unterminated string"),
            ('{"schema": 2}', "schema 2, expected 1"),
            ('{"schema": 1}', "'predictions'"),
        ],
    )
    def test_that_is_broken_is_kept_as_a_copy(
        self, runs_root: Path, capsys: pytest.CaptureFixture, content: str, problem: str
    ) -> None:
        runs_root.mkdir()
        path().write_text(content)
        assert progress().predictions.empty
        assert problem in (message := capsys.readouterr().err)
        (copy,) = runs_root.glob("progress.unreadable-*.json")
        assert copy.read_text() == content
        assert copy.name in message
        predict("amp", 2.0)
        assert prediction("amp").value == 2
        assert [file.read_text() for file in runs_root.glob("progress.unreadable-*")] == [content]

    def test_that_a_failure_interrupts_keeps_what_it_held(self) -> None:
        predict("amp", 2.0)
        with pytest.raises(RuntimeError), changing() as store:
            store["predictions"].clear()
            raise RuntimeError
        assert prediction("amp").value == 2


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> None:
    amp = discovery.exercises()["amp"]
    wanted = {"amp": "bf16 kernels ran", "channels_last": "strides are NHWC"}
    checks = {name: replace(amp, title=title) for name, title in wanted.items()}
    monkeypatch.setattr(discovery, "exercises", lambda: checks)
    monkeypatch.setattr(discovery, "functions", dict)
    monkeypatch.setattr(discovery, "file_checks", dict)


class TestProgress:
    def test_before_anything_was_done(self, checks: None) -> None:
        tables = progress()
        assert tables.to_dict()["todos"] == [
            {name: row[name] for name in ("todo", "state", "title")}
            for row in exercises.all_states()
        ]
        assert list(tables.checks["state"]) == ["open", "open"]
        assert list(tables.quizzes["quiz"]) == [*paths()]
        assert tables.quizzes["answered"].sum() == 0
        assert "Checks: 0 of 2 passed" in repr(tables)

    def test_counts_what_was_done(self, checks: None, runs_root: Path) -> None:
        save_check("channels_last", UNMEASURABLE)
        save_check("amp", {**UNMEASURABLE, "mechanism": "failed"})
        assert list(progress().checks["state"]) == ["failed", "not measurable here"]
        save_check("amp", PASSED)
        save_answer("gpu", 1, "a", False)
        save_answer("gpu", 1, "b", True)
        save_answer("gpu", 2, "a", False)
        predict("ceiling", "memory", choices=CEILINGS)
        pretend_launched(runs_root, "amp")
        predict("amp", 2.0)
        tables = progress()
        assert list(tables.checks["state"]) == ["passed", "not measurable here"]
        assert list(tables.checks["title"]) == ["bf16 kernels ran", "strides are NHWC"]
        row = tables.quizzes.set_index("quiz").loc["gpu"]
        assert (row["right"], row["answered"]) == (1, 2)
        assert row["questions"] == len(quiz("gpu").questions)
        assert list(tables.predictions["late"]) == [False, True]
        assert "Predictions: 2, 1 of them after a run" in repr(tables)
        assert "Checks: 1 of 2 passed" in tables._repr_html_()

    def test_lists_the_checks_that_there_are(self) -> None:
        names = [*discovery.exercises(), *discovery.functions(), *discovery.file_checks()]
        assert list(progress().checks["check"]) == names

    def test_answers_to_questions_that_went_away_do_not_count(self) -> None:
        save_answer("gpu", 99, "a", True)
        assert progress().quizzes["answered"].sum() == 0

    def test_shows_days_and_the_labs_begun_with_the_next(self, runs_root: Path) -> None:
        """After one lab, a screen; and all of it on request."""
        save_check("device", PASSED)
        save_check("amp", UNMEASURABLE | {"correct": "failed"})
        save_answer("gpu", 1, "b", True)
        predict("amp", 2.0, "<b>half</b> the bits")
        lines = repr(progress()).splitlines()
        assert len(lines) < 25
        labs = [line.split()[0] for line in lines if re.match(r"  [\dA-Z](\.\d)? ", line)]
        assert labs == ["1.1", "1.4", "1.5"]
        (day,) = [line for line in lines if line.startswith("  Day 1")]
        assert re.search(r"  1 of \d+ +1 of \d+$", day)
        assert any("amp (failed), grad_scaler" in line for line in lines)
        everything = progress(everything=True)
        assert len(repr(everything).splitlines()) > 100 and "half</b> the bits" in repr(everything)
        assert "<b>half" not in everything._repr_html_()
        shown = CliRunner().invoke(app, ["progress"])
        assert shown.output.strip() == repr(progress())
        assert CliRunner().invoke(app, ["progress", "--all"]).output.strip() == repr(everything)

    def test_what_was_given_is_counted_apart(self, monkeypatch: pytest.MonkeyPatch) -> None:
        states = {"device": "solved", "amp": "given", "grad_scaler": "edited"}
        rows = [row | {"state": states.get(row["todo"], "open")} for row in exercises.all_states()]
        monkeypatch.setattr(exercises, "all_states", lambda: rows)
        shown = repr(progress())
        total = len(rows)
        assert f"TODOs: 2 of {total} filled, 1 more by course exercises --upto" in shown
        assert re.search(r"\n  1\.4 .*  1 of 2, 1 given  ", shown)
        assert re.search(r"\n  Day 1  +2 of \d+, 1 given  ", shown)
        assert re.search(r"\n  1\.1 .*  1 of 1  ", shown)

    @pytest.mark.parametrize("waiting", ["", clone.WAITING])
    def test_says_that_an_update_is_waiting(
        self, waiting: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(clone, "look_for_update", lambda: lambda: waiting)
        shown = progress()
        assert repr(shown).startswith(waiting or "Days\n")
        assert (f"<b>{clone.WAITING}</b>" in shown._repr_html_()) == bool(waiting)

    def test_is_json(self, checks: None) -> None:
        save_check("amp", PASSED)
        predict("amp", 2.0)
        values = json.loads(json.dumps(progress().to_dict(), allow_nan=False))
        assert set(values) == {"todos", "checks", "quizzes", "predictions"}
        assert values["predictions"][0]["value"] == 2

    def test_escapes_what_a_learner_wrote(self) -> None:
        predict("question", 1, "<script>alert(1)</script>")
        assert "<script>" not in progress()._repr_html_()
