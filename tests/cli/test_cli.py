"""The `course` command as a user types it: output, exit codes, messages."""

import io
import json
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from classroom_helpers import make_class
from typer.testing import CliRunner

from course import __main__, config
from course.checks import exercises
from course.cli import labs
from course.jobs import launch as jobs
from course.runs.run import PROJECT
from course.training import precision
from labs.start_here.doctor import examine

LIGHT = str(PROJECT / "tests" / "scripts" / "ok_light.py")
RAISES = str(PROJECT / "tests" / "scripts" / "raises.py")


def course(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "course", *arguments]
    env = os.environ | {"COLUMNS": "200"}
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=300)


def in_process(*arguments: str) -> str:
    """Return the output of a command that succeeds."""
    result = CliRunner().invoke(__main__.app, arguments, env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return result.stdout


COMMANDS = [info.name or info.callback.__name__ for info in __main__.app.registered_commands]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str) -> None:
    result = CliRunner().invoke(__main__.app, [command, "--help"])
    assert (result.exit_code, "Usage" in result.stdout) == (0, True)


def test_a_recorded_run_is_shown_by_its_name(runs_root: Path) -> None:
    site = ("--rung", "amp", "--site", "recorded-nvidia-h100", "--json")
    record = json.loads(in_process("run", "solutions/train.py", *site))
    for name in (record["run"], f"nvidia-h100/{record['run']}"):
        assert json.loads(in_process("show", name, "--json")) == record
    text = in_process("show", record["run"])
    for words in ("images/s ", "quartiles", "memory ", "loss ", "folder ", "--json has the"):
        assert words in text
    assert len(text.splitlines()) < 10


@pytest.mark.slow
def test_a_style_in_a_folder_of_everyone_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o1777)
    os.mkfifo(tmp_path / "matplotlibrc")  # matplotlib would wait for it
    monkeypatch.chdir(tmp_path)
    assert "the board, with pictures: " in course("race").stdout


def test_a_command_stays_in_its_folder_if_a_classmate_exchanges_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder := tmp_path / "group").mkdir()
    folder.chmod(0o777)
    monkeypatch.chdir(folder)
    before = os.stat(".")

    def exchange(name: str) -> None:
        folder.rename(tmp_path / "moved")
        folder.symlink_to(Path.home())

    monkeypatch.setattr(__main__, "import_module", exchange)
    monkeypatch.setattr(__main__, "app", lambda: None)
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO()))
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(io.BytesIO()))
    __main__.main()
    assert os.path.samestat(os.stat("."), before)


def test_run_is_launched_shown_listed_and_its_log_printed(runs_root: Path) -> None:
    launched = json.loads(course("run", LIGHT, "--json").stdout)
    assert launched["status"] == "ok"
    (listed,) = json.loads(in_process("runs", "--json"))
    assert listed["run"] == launched["run"]
    assert json.loads(in_process("show", launched["run"], "--json")) == launched
    assert "all is well" in in_process("logs", launched["run"])
    again = in_process("run", LIGHT)
    assert "launched before" in again and f"{launched['run']}: ok" in again
    assert "steps, 00:" not in again  # no progress lines without a terminal


def test_a_dry_run_prints_the_batch_script_and_starts_nothing(runs_root: Path) -> None:
    command = ("run", LIGHT, "--rung", "amp", "--dry-run", "--gpus", "16", "--site")
    assert "#SBATCH --nodes=2\n" in in_process(*command, "jean-zay-a100")
    assert "#SBATCH --nodes=4\n" in in_process(*command, "jean-zay-v100")
    assert not runs_root.exists()


@pytest.mark.parametrize("half, left_out", [("fp32", {"device", "amp"}), ("bf16", {"device"})])
def test_a_ladder_leaves_out_rungs_that_compute_the_same(
    half: str, left_out: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    configs = []

    def launch_all(_script: str, launched: list, **_options: object) -> list:
        configs.extend(launched)
        raise ValueError("enough")

    monkeypatch.setattr(jobs, "launch_all", launch_all)
    monkeypatch.setattr(precision, "default_device", lambda _: torch.device("cpu"))
    monkeypatch.setattr(precision, "has_units", lambda _, name: name in ("fp32", half))
    px = config.QUICK["image_px"]
    for words, expected in (([], px), (["--set", "image_px=48"], 48), (["--compile"], px)):
        configs.clear()
        assert CliRunner().invoke(__main__.app, ["ladder", "--quick", *words]).exit_code
        rungs = [*config.LADDER, *(config.COMPILED if words == ["--compile"] else ())]
        assert {cfg.image_px for cfg in configs} == {expected}
        assert [cfg.rung for cfg in configs] == [rung for rung in rungs if rung not in left_out]


def test_another_script_has_a_ladder_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    configs = []

    def launch_all(_script: str, launched: list, **_options: object) -> list:
        configs.extend(launched)
        raise ValueError("enough")

    monkeypatch.setattr(jobs, "launch_all", launch_all)
    monkeypatch.setattr(precision, "has_units", lambda *_: True)
    command = ["ladder", "--script", "solutions/train_gpt.py", "--quick"]
    for words, rungs in ([], 3), (["--compile"], 6):
        configs.clear()
        assert CliRunner().invoke(__main__.app, [*command, *words]).exit_code
        assert [cfg.rung for cfg in configs] == [*sum(config.LADDERS["train_gpt.py"], ())][:rungs]


def test_a_recorded_ladder_shows_what_was_not_recorded(runs_root: Path) -> None:
    command = ("ladder", "--site", "recorded-nvidia-h100", "--compile", "--json")
    rows = {row["rung"]: row for row in json.loads(in_process(*command))}
    assert list(rows) == [*config.LADDER, *config.COMPILED]
    assert rows["amp"]["status"] == "ok" and rows["amp"]["images_per_s"] > 0
    assert rows["compile"]["status"] == "not recorded" and rows["compile"]["images_per_s"] is None
    assert "not recorded" in in_process(*command[:-1])


@pytest.mark.slow
def test_a_failed_run_exits_with_1_and_shows_why(runs_root: Path) -> None:
    result = course("run", RAISES)
    assert result.returncode == 1
    lines = [line for line in result.stderr.splitlines() if line and "|" not in line]
    assert re.search(
        r": failed\. \w+Error: .* \(the script ended with code 1\) \(.*raises\.py, line 5\)$",
        lines[0],
    )
    assert "Logs:" in result.stderr and "course logs" in result.stdout


def test_bad_input_ends_the_process_with_1(runs_root: Path) -> None:
    result = course("run", "nowhere.py")
    assert result.returncode == 1 and "exercises/train.py" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("program", [["course", "slurm"], ["slurm_box"]])
def test_an_error_of_the_cluster_is_a_message(
    program: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_BOX_PORT", "80")
    command = [sys.executable, "-m", *program, "status"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 1
    assert result.stderr.startswith("error: SLURM_BOX_PORT='80': expected a number from 1024")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("run", LIGHT, "--rung", "ampp"), "baseline, device, amp, channels_last"),
        (("run", LIGHT, "--set", "batchsize=3"), "did you mean 'batch_size'"),
        (
            ("run", "solutions/train_parallel.py", "--set", "mix=mixup"),
            "train_parallel.py has no setting 'mix'; train.py and train_restarted.py have it",
        ),
        (("run", LIGHT, "--site", "moon"), "choose local"),
        (("run", LIGHT, "--gpus", "0"), "takes 1 to"),
        (("show", "nothing"), "no run is called"),
        (("run", LIGHT, "--dry-run", "--site", "jean-zay-a100", "--gpus", "12"), "a multiple of 8"),
        (("show", "algebra-ae2a6d0b"), "choose nvidia-h100/algebra-ae2a6d0b, nvidia-h200/"),
        (("cancel",), "--all"),
        (("notebooks", "day9*"), "gpu"),
        (
            ("exercises", "--upto", "apm"),
            "there is no exercise 'apm' (did you mean 'amp'?): train.py has",
        ),
        (("record", "moon", "--gpus", "2", "--only", "mars"), "there are gpt_fused, device"),
    ],
)
def test_bad_input_is_a_message_and_not_a_traceback(
    runs_root: Path,
    arguments: tuple[str, ...],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    monkeypatch.setattr(sys, "argv", ["course", *arguments])
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as end:
        __main__.main()
    error = capsys.readouterr().err
    assert end.value.code == 1 and message in error
    assert "Traceback" not in error
    assert not list(runs_root.glob("*/launch.json"))


@pytest.mark.parametrize("command", ["class", "race", "class join --yes", "ladder --quick"])
def test_a_runs_folder_that_cannot_be_written_is_a_message(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("COURSE_RUNS", str(tmp_path / "file" / "runs"))
    monkeypatch.setenv("COURSE_CLASS", str(make_class(tmp_path / "class")))
    monkeypatch.setattr(sys, "argv", ["course", *command.split()])
    with pytest.raises(SystemExit) as end:
        __main__.main()
    error = capsys.readouterr().err
    assert end.value.code == 1 and "file" in error and "Not a directory" in error


def test_exercises_check_fails_when_the_exercise_drifts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_process("exercises", "--check")
    copy = tmp_path / "exercises"  # the real ones are read by other tests meanwhile
    copy.mkdir()
    for path in exercises.solutions():
        (copy / path.name).write_text(exercises.render(path.read_text(), ()))
    monkeypatch.setattr(exercises, "EXERCISES", copy)
    labs.exercises(check=True)
    with (copy / "train.py").open("a") as script:
        script.write("# an edit\n")
    with pytest.raises(ValueError, match="train.py in exercises/ differs from what solutions/"):
        labs.exercises(check=True)


@pytest.mark.slow
def test_doctor_runs_a_job(runs_root: Path) -> None:
    result = course("doctor", "--json")
    checks = {
        check["name"]: check for check in json.loads(result.stdout[result.stdout.index("[") :])
    }
    assert checks["ten_second_job"]["status"] == "ok", checks["ten_second_job"]
    assert result.returncode == 0
    assert not [folder for folder in runs_root.iterdir() if not folder.name.startswith(".")]


@pytest.mark.slow
def test_doctor_reports_a_failure_and_its_fix(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("COURSE_RUNS", str(tmp_path / "file" / "runs"))
    checks = {check.name: check for check in examine(job=False)}
    assert checks["write_access"].status == "fail"
    assert "COURSE_RUNS" in checks["write_access"].fix
    assert CliRunner().invoke(__main__.app, ["doctor", "--no-job"]).exit_code == 1


def test_version_is_the_one_of_the_package() -> None:
    assert course("--version").stdout == f"make-training-fast {version('make-training-fast')}\n"


def test_without_the_repository_a_command_says_what_to_do(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("course.runs.run.PROJECT", tmp_path)
    result = CliRunner().invoke(__main__.app, ["runs"])
    assert "clone the repository, run `make setup`" in str(result.exception)


OWN = """
import sys, neighbour, torch
weight = torch.nn.Parameter(torch.zeros(3))
optimizer = torch.optim.SGD([weight], 0.1)
for _ in range(12):
    (weight - neighbour.TARGET).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
print(*sys.argv[1:])
"""


@pytest.mark.slow
def test_a_script_of_ones_own_is_run_timed_and_compared(
    runs_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    (tmp_path / "neighbour.py").write_text("TARGET = 2.0\n")
    monkeypatch.chdir(tmp_path)
    first, second = (
        json.loads(in_process("run", "mine.py", "--name", "vit", "--json", "--", "--lr", lr))
        for lr in ("1 e-3", "2")
    )
    assert first["status"] == second["status"] == "ok"
    assert first["run"].startswith("vit-") and first["run"] != second["run"]
    assert "--lr 1 e-3" in in_process("logs", first["run"])
    assert "ms per iteration (median of " in in_process("show", first["run"])
    compared = in_process("compare", second["run"], first["run"])
    assert "× (" in compared and "arguments: --lr 1 e-3 → --lr 2" in compared
    for command, words in (
        (("run", "mine.py", "--name", "../x"), "expected letters"),
        (("run", "solutions/train.py", "--", "--lr", "3"), "reads a config"),
        (("run", "mine.py", "--set", "lr=3", "--", "--lr", "3"), "reads no config"),
    ):
        error = CliRunner().invoke(__main__.app, command).exception
        assert isinstance(error, ValueError) and words in str(error)
