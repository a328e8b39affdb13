"""The `course` command as a user types it: real processes, exit codes, messages."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from cases import for_all
from typer.testing import CliRunner

from course import __main__, config, doctor
from course.checks import exercises
from course.checks import verdict as checks
from course.cli import labs
from course.doctor import examine
from course.jobs import launch as jobs
from course.runs.run import PROJECT
from course.training import precision

LIGHT = str(PROJECT / "tests" / "scripts" / "ok_light.py")
RAISES = str(PROJECT / "tests" / "scripts" / "raises.py")


def course(*arguments: str, **variables: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "course", *arguments]
    env = {**os.environ, "COLUMNS": "200", **variables}
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=300)


def in_process(*arguments: str) -> str:
    """What a command that succeeds prints, without a Python of its own, of half a second."""
    done = CliRunner().invoke(__main__.app, arguments, env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    return done.stdout


COMMANDS = [each.name or each.callback.__name__ for each in __main__.app.registered_commands]


@for_all("command", COMMANDS)
def test_every_command_has_help(command: str) -> None:
    result = CliRunner().invoke(__main__.app, [command, "--help"])
    assert (result.exit_code, "Usage" in result.stdout) == (0, True)


def test_a_recorded_run_is_shown_by_the_name_that_run_prints(runs_root: Path) -> None:
    site = ("--rung", "amp", "--site", "recorded-nvidia-h100", "--json")
    answer = json.loads(in_process("run", "solutions/train.py", *site))
    for name in (answer["run"], f"nvidia-h100/{answer['run']}"):
        assert json.loads(in_process("show", name, "--json")) == answer


@pytest.mark.slow
def test_run_is_launched_shown_listed_and_its_log_printed(runs_root: Path) -> None:
    launched = json.loads(course("run", LIGHT, "--json").stdout)
    assert launched["status"] == "ok"
    (listed,) = json.loads(in_process("runs", "--json"))
    assert listed["run"] == launched["run"]
    assert json.loads(in_process("show", launched["run"], "--json")) == launched
    assert "all is well" in in_process("logs", launched["run"])
    assert "launched before" in in_process("run", LIGHT)


def test_a_dry_run_prints_the_batch_script_and_starts_nothing(runs_root: Path) -> None:
    asked = ("run", LIGHT, "--rung", "amp", "--dry-run", "--gpus", "16", "--site")
    assert "#SBATCH --nodes=2\n" in in_process(*asked, "jean-zay-a100")
    assert "#SBATCH --nodes=4\n" in in_process(*asked, "jean-zay-v100")
    assert not runs_root.exists()


@pytest.mark.parametrize(
    "half, left_out", [("fp32", {"device", "amp"}), ("bf16", {"device"}), ("fp16", {"device"})]
)
def test_a_ladder_leaves_out_rungs_that_would_compute_the_same(
    half: str, left_out: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def launch_all(_script: str, configs: list, **_options: object) -> list:
        asked.extend(configs)
        raise ValueError("seen")

    monkeypatch.setattr(jobs, "launch_all", launch_all)
    monkeypatch.setattr(precision, "default_device", lambda _: torch.device("cpu"))
    monkeypatch.setattr(precision, "has_units", lambda _, name: name in ("fp32", half))
    px = config.QUICK["image_px"]
    for words, wanted in (([], px), (["--set", "image_px=48"], 48), (["--compile"], px)):
        asked.clear()
        assert CliRunner().invoke(__main__.app, ["ladder", "--quick", *words]).exit_code
        rungs = [*config.LADDER, *(config.COMPILED if words == ["--compile"] else ())]
        assert {each.image_px for each in asked} == {wanted}
        assert [each.rung for each in asked] == [each for each in rungs if each not in left_out]


def test_a_check_measures_anew_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def check(name: str, **options: object) -> None:
        asked.append((name, options["rerun"]))
        raise ValueError("seen")

    monkeypatch.setattr(checks, "check", check)
    for words in ([], ["--rerun"]):
        assert CliRunner().invoke(__main__.app, ["check", "day1.amp", *words]).exit_code
    assert asked == [("day1.amp", False), ("day1.amp", True)]


def test_what_would_be_recorded_is_listed_and_not_run(runs_root: Path) -> None:
    listed = in_process("record", "here", "--gpus", "2", "--only", "find*", "--list")
    _, row, end = listed.splitlines()
    assert row.split()[:2] == ["find_unused", "2"] and end == "all of it: about 13 s"
    assert not runs_root.exists()


@pytest.mark.slow
def test_failed_run_exits_with_1_and_shows_why(runs_root: Path) -> None:
    result = course("run", RAISES)
    assert result.returncode == 1
    lines = [line for line in result.stderr.splitlines() if line and "|" not in line]
    assert re.search(r": failed\. \w+Error: .* \(the script ended with code 1\)$", lines[0])
    assert "Logs:" in result.stderr and "config" not in result.stdout


def test_bad_input_ends_the_process_with_1(runs_root: Path) -> None:
    result = course("run", "nowhere.py")
    assert result.returncode == 1 and "exercises/train.py" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    "arguments, said",
    [
        (("run", LIGHT, "--rung", "ampp"), "baseline, device, amp, channels_last"),
        (("run", LIGHT, "--set", "batchsize=3"), "did you mean 'batch_size'"),
        (("run", LIGHT, "--set", "batch_size"), "key=value"),
        (("run", LIGHT, "--site", "moon"), "choose local"),
        (("run", LIGHT, "--gpus", "0"), "takes 1 to"),
        (("run", LIGHT, "--time-min", "-1"), "above 0"),
        (("run", "README.md"), "expected a Python script"),
        (("show", "nothing"), "no run is called"),
        (("run", LIGHT, "--dry-run", "--site", "jean-zay-a100", "--gpus", "12"), "a multiple of 8"),
        (("show", "algebra-ae2a6d0b"), "choose nvidia-h100/algebra-ae2a6d0b, nvidia-h200/"),
        (("race", "quick", "--entry", "nope"), "choose plain, one_cycle, progressive, fast"),
        (("cancel",), "--all"),
        (("notebooks", "day9*"), "day1_1_gpu"),
        (("exercises", "--upto", "99"), "there is no TODO 99: train.py has 1 to 16"),
        (("record", "moon", "--gpus", "2", "--only", "mars"), "there are device, channels_last"),
        (("record", "moon", "--variants", "--list"), "leave out --list and --only"),
    ],
)
def test_bad_input_is_a_message_and_not_a_traceback(
    runs_root: Path,
    arguments: tuple[str, ...],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    monkeypatch.setattr(sys, "argv", ["course", *arguments])
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as end:
        __main__.main()
    told = capsys.readouterr().err
    assert end.value.code == 1 and said in told
    assert "Traceback" not in told
    assert not list(runs_root.glob("*/launch.json"))


def test_exercises_check_fails_when_the_exercise_drifts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_process("exercises", "--check")
    copy = tmp_path / "exercises"  # the real ones are read by other tests meanwhile
    copy.mkdir()
    for path in exercises.solutions():
        (copy / path.name).write_text(exercises.render(path.read_text(), 0))
    monkeypatch.setattr(exercises, "EXERCISES", copy)
    labs.exercises(check=True)
    with (copy / "train.py").open("a") as script:
        script.write("# an edit\n")
    with pytest.raises(ValueError, match="train.py in exercises/ differs from what solutions/"):
        labs.exercises(check=True)


@pytest.mark.slow
def test_doctor_runs_a_job_and_says_so_in_json(runs_root: Path) -> None:
    result = course("doctor", "--json")
    checks = {
        check["name"]: check for check in json.loads(result.stdout[result.stdout.index("[") :])
    }
    assert checks["ten_second_job"]["status"] == "ok", checks["ten_second_job"]
    assert result.returncode == 0
    assert not [folder for folder in runs_root.iterdir() if not folder.name.startswith(".")]


@pytest.mark.slow
def test_doctor_names_a_failure_and_its_fix(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("COURSE_RUNS", str(tmp_path / "file" / "runs"))
    found = {check.name: check for check in examine(job=False)}
    assert found["write_access"].status == "fail"
    assert "COURSE_RUNS" in found["write_access"].fix
    assert CliRunner().invoke(__main__.app, ["doctor", "--no-job"]).exit_code == 1


def test_doctor_sees_that_another_clone_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert doctor.clone().status == "ok"
    (tmp_path / "course").mkdir()
    shutil.copy(PROJECT / "course" / "doctor.py", tmp_path / "course")
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    found = doctor.clone()
    assert found.status == "fail" and f"export PYTHONPATH={tmp_path}" in found.fix
