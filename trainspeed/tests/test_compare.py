"""Commands and functions that are compared take turns, and end as they should."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from trainspeed import compare, comparison, recorder, turns
from trainspeed.comparison import CompareError, parse_command
from trainspeed.run import PLAN
from trainspeed.turns import Block, Side, SideEnded

SCRIPT = Path(__file__).with_name("training.py")
TRAIN = f"{sys.executable} {SCRIPT}"
LIMIT_S = 120.0


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run commands in a folder of their own, with a short block."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(turns, "BLOCK_S", 0.1)
    return tmp_path


def write(folder: Path, name: str, code: str) -> str:
    """Write a script, and return its command."""
    (folder / name).write_text(code)
    return f"{sys.executable} {folder / name}"


def spans(path: Path) -> list[tuple[float, float]]:
    """Return begin and end of each step that a training wrote."""
    lines = [line.split() for line in path.read_text().splitlines()]
    return [(float(begin), float(end)) for begin, end in (line for line in lines if len(line) == 2)]


class Paced(Side):
    """A side whose iterations have given durations."""

    def __init__(self, name: str, iteration_s: float, samples: float = 0.0, count: int = 10**9):
        super().__init__(name)
        self.rule, self._true_s, self._samples, self._count = "steps", iteration_s, samples, count

    def compute(self, iterations: int) -> Block:
        self._count -= iterations
        if self._count < 0:
            raise SideEnded(self, f"{self.name} ended")
        return Block(iterations, iterations * self._true_s, self._samples)


def compare_paced(*sides: Paced, seconds: float = 60.0) -> comparison.Comparison:
    return comparison._compare(sides, seconds, None)


# Without processes.


def test_the_ratio_is_of_iterations_and_ends_once_it_is_certain() -> None:
    found = compare_paced(Paced("a", 0.02), Paced("b", 0.01))
    assert found.ratio.value == pytest.approx(2)
    assert (found.turns, found.unit, found.is_noisy) == (8, "iterations/s", False)
    assert str(found) == "b: 2× (2 to 2) the iterations/s of a; 8 turns"
    assert json.loads(json.dumps(found.to_dict()))["ratios"]["b"]["noise"] == ""


def test_a_process_with_few_cores_does_not_call_a_half_idle_machine_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The load counts the processes of all cores; a job may use only one of them."""
    monkeypatch.setattr(os, "getloadavg", lambda: (8.0, 8.0, 8.0))
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0}, raising=False)
    assert compare_paced(Paced("a", 0.02), Paced("b", 0.01)).ratio.load == 0.5
    assert recorder.machine()["load_per_core"] == 0.5


def test_other_batch_sizes_are_compared_by_samples() -> None:
    found = compare_paced(Paced("a", 0.02, samples=32), Paced("b", 0.02, samples=64))
    assert found.unit == "samples/s"
    assert found.ratio.value == pytest.approx(2)
    assert found.speeds["a"] == pytest.approx(32 / 0.02)


def test_few_turns_are_too_noisy_to_judge() -> None:
    found = compare_paced(Paced("a", 0.02), Paced("b", 0.02, count=20))
    assert found.is_noisy
    assert "b ended" in str(found)


def test_the_time_to_measure_is_limited() -> None:
    found = compare_paced(Paced("a", 3), Paced("b", 3), seconds=5)
    assert (found.turns, found.ended) == (3, "5 s were measured")


def test_turns_before_the_training_do_not_count() -> None:
    """A loop over batches before the first optimizer's step is counted, until there is a step."""

    class Changes(Paced):
        def measure(self, least_s: float = 0.1) -> Block:
            block = super().measure(least_s)
            changes = self.rule == "steps" and self._count < 10**9 - 40
            self.rule = "updates" if changes else self.rule
            self._true_s = 0.01 if self.rule == "updates" else 1.0
            return block

    found = compare_paced(Paced("a", 0.02), Changes("b", 0.02))
    assert found.turns == 8


def test_functions_take_turns_in_random_order() -> None:
    calls = []
    found = compare({"f": lambda: calls.append("f"), "g": lambda: calls.append("g")}, seconds=0.5)
    assert found.unit == "calls/s"
    assert found.turns >= 3
    assert found.ratio.low <= found.ratio.value <= found.ratio.high
    assert {*calls} == {"f", "g"}


def test_an_error_in_a_function_is_the_callers() -> None:
    with pytest.raises(ZeroDivisionError):
        compare({"f": lambda: 1 / 0, "g": lambda: None})


def test_workers_stand_still_while_others_compute() -> None:
    child = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(LIMIT_S,))
    child.start()
    try:
        process = psutil.Process(child.pid)
        with turns.workers_stopped():
            wait_for(lambda: process.status() == psutil.STATUS_STOPPED)
        wait_for(lambda: process.status() != psutil.STATUS_STOPPED)
    finally:
        child.kill()
        child.join()


@pytest.mark.parametrize(
    "sides, message",
    [
        ({"a": "python x.py"}, "1 side: expected at least two"),
        ({"a": "no-such-program x", "b": "python x.py"}, "no-such-program: no such program"),
        ({"a": "python 'x", "b": "python x.py"}, "No closing quotation"),
        ({"a": "", "b": "python x.py"}, "no command"),
        ({"a": print, "b": "python x.py"}, "functions and commands"),
    ],
)
def test_sides_that_cannot_be_compared(sides: dict, message: str) -> None:
    with pytest.raises(CompareError, match=message):
        compare(sides)


def test_seconds_are_more_than_none() -> None:
    with pytest.raises(CompareError, match="seconds=-1: expected more than 0"):
        compare({"f": print, "g": print}, seconds=-1)


def test_a_command_may_begin_with_variables() -> None:
    values, command = parse_command("A=1 B='x y' train.py --lr=3")
    assert values == {"A": "1", "B": "x y"}
    assert command == [sys.executable, "train.py", "--lr=3"]


# With processes.


def wait_for(condition) -> None:
    """Wait until a condition is true."""
    end_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end_s, "it took too long"
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def started(*commands: str, seconds: float = 60.0) -> subprocess.Popen:
    """Start `trainspeed compare`."""
    command = [sys.executable, "-m", "trainspeed", "compare", *commands, "--seconds", f"{seconds}"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_commands_compute_in_turns(folder: Path) -> None:
    sides = {"a": f"{TRAIN} --name a --workers 1", "b": f"{TRAIN} --name b --sleep-ms 10"}
    found = compare(sides, seconds=2)
    assert found.turns >= 3
    assert found.unit == "iterations/s"
    steps = sorted([(*span, "a") for span in spans(folder / "a0.txt")[2:]])
    steps += [(*span, "b") for span in spans(folder / "b0.txt")[2:]]
    steps.sort()
    # A step that began before the wait ends after it, so blocks overlap by none.
    assert all(one[1] <= two[0] for one, two in zip(steps, steps[1:]) if one[2] != two[2])
    changes = sum(one[2] != two[2] for one, two in zip(steps, steps[1:]))
    assert changes >= found.turns


@pytest.mark.slow
def test_an_empty_path_is_not_the_current_folder(folder: Path) -> None:
    (folder / "sitecustomize.py").write_text("open('imported', 'w').close()")
    sides = {name: f"PYTHONPATH= {TRAIN}" for name in "ab"}
    compare(sides, seconds=1)
    assert not (folder / "imported").exists()


@pytest.mark.slow
def test_several_ranks_wait_at_the_same_iteration(folder: Path) -> None:
    torchrun = f"{sys.executable} -m torch.distributed.run --nproc-per-node 2 {SCRIPT} --ranks"
    found = compare({"a": f"{torchrun} --name a", "b": f"{torchrun} --name b --batch 8"}, seconds=2)
    assert found.turns >= 3
    assert found.unit == "samples/s"
    assert found.samples == {"a": 8, "b": 16}
    counts = {len(spans(folder / f"a{rank}.txt")) for rank in (0, 1)}
    assert max(counts) - min(counts) <= 1


@pytest.mark.long  # it starts eight processes
def test_commands_that_do_not_fit_together_run_one_after_the_other(folder: Path) -> None:
    alone = (
        "import fcntl, runpy, sys, time\n"
        "lock = open('gpu', 'w')\n"
        "try: fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        "except OSError: sys.exit('torch.OutOfMemoryError: CUDA out of memory.')\n"
        f"sys.argv = ['x', '--sleep-ms', sys.argv[1]]; runpy.run_path({str(SCRIPT)!r})\n"
    )
    command = write(folder, "alone.py", alone)
    found = compare({"a": f"{command} 2", "b": f"{command} 20"}, seconds=1)
    assert "memory" in found.alternated
    assert "one after the other" in str(found)
    assert found.turns >= 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "code, message",
    [
        ("import torch", "no iteration was seen"),
        ("print('x' * 5); raise SystemExit('no data in /nowhere')", "(?s)exit code 1.*/nowhere"),
        ("raise SystemExit('CUDA out of memory')", "(?s)failed.*out of memory"),  # also alone
    ],
)
def test_scripts_that_do_not_train(folder: Path, code: str, message: str) -> None:
    command = write(folder, "bad.py", code)
    with pytest.raises(CompareError, match=message):
        compare({"a": command, "b": command})


@pytest.mark.slow
def test_a_script_that_ends_early_ends_the_turns() -> None:
    done = started(f"{TRAIN} --steps 40", f"{TRAIN} --sleep-ms 6")
    out, error = done.communicate(timeout=LIMIT_S)
    assert done.returncode == 3, error
    assert "too noisy to judge" in out
    assert "--steps 40 ended" in out


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_when_it_is_ended(folder: Path, number: int) -> None:
    trained = f"{TRAIN} --workers 1 --name"
    process = started(f"{trained} a", f"{trained} b")
    logs = [folder / "a0.txt", folder / "b0.txt"]
    wait_for(lambda: all(log.exists() and log.read_text().count("\n") > 3 for log in logs))
    pids = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
    assert len(pids) >= 4
    plan = json.loads(psutil.Process(pids[0]).environ()[PLAN])
    stage = Path(plan["folder"]).parent
    process.send_signal(number)
    process.communicate(timeout=LIMIT_S)
    code = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}[number]
    assert process.returncode == code
    wait_for(lambda: not any(map(is_running, pids)))
    assert stage.exists() == (number == signal.SIGKILL)
    shutil.rmtree(stage, ignore_errors=True)
