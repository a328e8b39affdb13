"""Helpers for tests of jobs: scripts, waiting with a deadline, and leaving nothing behind."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import pytest

from course.config import Config, rung
from course.jobs import launch as jobs
from course.jobs.processes import of_runs
from course.jobs.scripts import Surroundings, run_script
from course.runs import run as runs
from course.runs.run import PROJECT, Run
from slurm_box.tests.fixtures import DEADLINE_S, eventually
from slurm_box.tests.fixtures import slurm_says as slurm_says

SCRIPTS = Path(__file__).parent / "scripts"
CONFIG = rung("baseline", quick=True)

# A process that executes this uses the networks of narrow.py, which train ten times as fast.
NARROW = f"""
import sys
sys.path.insert(0, {str(SCRIPTS)!r})
import narrow
narrow.use()
"""

# Sites whose job of two GPUs uses both of Slurm's nodes exclusively. A job of eight GPUs would too,
# but each of its tasks starts a separate Python.
WHOLE = 'executor = "slurm"\nnodes = 2\ngpus_per_node = 1\nsbatch = ["exclusive"]\n'
SITES = f'[whole]\n{WHOLE}[urgent]\n{WHOLE}partition = "urgent"\n'


STEPS = """
import os, sys
import torch
from trainspeed.phases import PHASES
from course.training.meter import Meter
from course.training.recorder import recording


IMAGES = torch.zeros(1), torch.zeros(1)


def main(run):
    meter = Meter(run, torch.device("cpu"))
    for epoch in range(run.config.epochs):
        for number, _ in enumerate(meter.steps([IMAGES] * run.config.steps, epoch)):
            INSIDE
            for phase in PHASES:
                meter.lap(phase, torch.tensor(1.0) if phase == "optimizer" else None)
        AFTER


BEFORE
with recording() as run:
    if run.world_size > 1:
        torch.distributed.init_process_group("gloo")
    main(run)
    END
"""
SHORT = replace(CONFIG, epochs=2, steps=4, budget_s=0.0, warmup_steps=0)


def steps_script(folder: Path, **lines: str) -> Path:
    """Write a script of which every step is empty, with other lines at a place."""
    text = STEPS
    for place in ("INSIDE", "AFTER", "BEFORE", "END"):
        text = text.replace(place, lines.get(place.lower(), "pass"))
    (folder / "mine.py").write_text(text)
    return folder / "mine.py"


def launch(script: str, **options: Any) -> Run:
    """Launch a script of tests/scripts with the quick config."""
    return jobs.launch(SCRIPTS / script, options.pop("config", CONFIG), **options)


def prepared(
    folder: Path, text: str, config: Config, *, gpus: int = 1, script: str = "exercises/train.py"
) -> Run:
    """Create a run's folder with this script, as `launch` does, without starting anything."""
    folder.mkdir(parents=True)
    (folder / "train.py").write_text(text)
    (folder / "config.json").write_text(config.to_json())
    request = {
        "rung": config.rung,
        "site": "local",
        "script": script,
        "gpus": gpus,
    }
    (folder / "launch.json").write_text(json.dumps(request))
    return Run(folder)


def narrow_solution(folder: Path, also: str = "", name: str = "train.py") -> Path:
    """Write the solution with narrow networks, for tests that do not depend on what it learns.

    Args:
        folder: where to write the script.
        also: additional code that it executes before it trains.
        name: of the solution.
    """
    script = folder / name
    solution, end = (PROJECT / "solutions" / name).read_text(), 'if __name__ == "__main__":'
    assert solution.count(end) == 1
    script.write_text(solution.replace(end, NARROW + also + end))
    return script


def train_together(
    of: Iterable[Run], timeout_s: float = 900, *, narrow: bool = True, **env: str
) -> str:
    """Train prepared runs one after another in one process, because importing torch takes longer.

    Returns:
        Everything that they printed.
    """
    folders = [str(run.folder) for run in of]
    alone = os.environ | {"RANK": "0", "WORLD_SIZE": "1"} | env
    with TemporaryDirectory() as place:
        done = run_forked(
            SCRIPTS / "train_variants.py",
            "narrow" if narrow else "whole",
            *folders,
            folder=Path(place),
            env=alone,
            timeout_s=timeout_s,
        )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def run_forked(
    script: Path, *arguments: str, folder: Path, env: dict[str, str], timeout_s: float = 240
) -> subprocess.CompletedProcess:
    """Run a script as jobs do, in a fork of a process that has imported PyTorch.

    Args:
        folder: an empty folder for its output.
    """
    out, err = folder / "printed.out", folder / "printed.err"
    surroundings = Surroundings(env, Path.cwd(), out, err)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["course.jobs.preload"])
    process = context.Process(target=run_script, args=(script, surroundings, arguments))
    process.start()
    process.join(timeout_s)
    code = process.exitcode
    process.kill()
    assert code is not None, f"{script} ran for more than {timeout_s} s"
    return subprocess.CompletedProcess([str(script)], code, out.read_text(), err.read_text())


def run_ranks(script: Path, *arguments: str, folder: Path) -> list[subprocess.CompletedProcess]:
    """Run two processes of a script like `run_forked`; the last argument of each is its rank."""
    places = [folder / rank for rank in "01"]
    for place in places:
        place.mkdir()

    def run(place: Path) -> subprocess.CompletedProcess:
        return run_forked(script, *arguments, place.name, folder=place, env=dict(os.environ))

    with ThreadPoolExecutor() as pool:
        return [*pool.map(run, places)]


def launch_running(script: str, **options: Any) -> Run:
    """Launch a run, and return it when it computes."""
    run = launch(script, **options)
    eventually(lambda: jobs.refresh(run) == "running", f"{run} runs")
    return run


def release(run: Run) -> None:
    """Let a run of holds.py end."""
    (run.folder / "go").touch()


def over(run: Run) -> Run:
    """Wait until the run is over, however it ends, and return it."""
    return jobs.wait([run], check=False, timeout_s=DEADLINE_S)[0]


def printed(run: Run) -> str:
    """Return everything that the run's tasks printed on standard output."""
    return "\n".join(path.read_text() for path in run.logs if path.suffix == ".out")


def start_python(script: str, *arguments: Any, **options: Any) -> subprocess.Popen:
    """Start Python as from another terminal, as the leader of a new session."""
    command = [sys.executable, "-u", str(SCRIPTS / script), *map(str, arguments)]
    with signals_of_a_terminal():
        return subprocess.Popen(command, start_new_session=True, text=True, **options)


@contextmanager
def signals_of_a_terminal() -> Iterator[None]:
    """Restore SIGINT and SIGHUP: a test run in the background or under nohup ignores them."""
    wanted = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    kept = {number: signal.signal(number, handler) for number, handler in wanted.items()}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def processes_of(root: Path) -> list[psutil.Process]:
    """Return every living process of the runs in a folder, on this machine or Slurm's nodes."""
    folders = [Run(path.parent) for path in root.rglob("launch.json")]
    with_variable = [process for process in psutil.process_iter() if _belongs(process, root)]
    return list({*of_runs(*folders), *with_variable})


def _belongs(process: psutil.Process, root: Path) -> bool:
    try:
        # Python's resource tracker and the fork server of `run_forked` belong to this process.
        is_ours = process.ppid() == os.getpid() and "multiprocessing" in str(process.cmdline())
        return process.environ().get("COURSE_RUNS") == str(root) and not is_ours
    except psutil.Error:  # it ended meanwhile, or is a zombie
        return False


def trainings_of(run: Run) -> int:
    """Return how many processes execute the run's snapshot, supervised or not."""
    return sum(process.name() == run.script.name for process in of_runs(run))


def expect_no_process(root: Path, timeout_s: float = 10) -> None:
    """Fail with their names if processes of the runs folder still run."""
    deadline = time.monotonic() + timeout_s
    while left := processes_of(root):
        assert time.monotonic() < deadline, f"processes are left: {left}"
        time.sleep(0.05)


def end_all_runs(root: Path) -> None:
    """Cancel every run; fail, and kill, if a process is left after that."""
    jobs.cancel(runs.all_jobs())
    try:
        expect_no_process(root)
    finally:
        for process in processes_of(root):
            with suppress(psutil.NoSuchProcess):  # it has ended by itself meanwhile
                process.kill()


@pytest.fixture(autouse=True)
def nothing_left(runs_root: Path) -> Iterator[None]:
    """Give each test a separate runs folder, and end all its processes after the test."""
    yield
    end_all_runs(runs_root)


@contextmanager
def small_disk(place: Path, size: str) -> Iterator[Path]:
    """Mount a real file system of this size; skip the test if mounting is not allowed."""
    place.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={size}", "tmpfs"]
    tried = subprocess.run(["mount", *options, str(place)], capture_output=True, text=True)
    if tried.returncode != 0:
        pytest.skip(f"a small disk cannot be mounted here: {tried.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


@contextmanager
def runs_root_at(root: Path) -> Iterator[Path]:
    """Use another runs folder temporarily, and end its runs afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COURSE_RUNS", str(root))
        try:
            yield root
        finally:
            end_all_runs(root)


@contextmanager
def small_runs_root(place: Path, size: str) -> Iterator[Path]:
    """Use a separate disk of this size as the runs folder."""
    with small_disk(place, size) as disk, runs_root_at(disk) as root:
        yield root


def fill(folder: Path, but_bytes: int = 0) -> Path:
    """Write a file until the disk has only `but_bytes` free; delete it to make room again."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            file.truncate(file.tell() - but_bytes)
    return filler
