"""What the tests of jobs share: scripts, waiting with a deadline, and leaving nothing behind."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import pytest
from filelock import FileLock

from course.config import Config, rung
from course.jobs import launch as jobs
from course.jobs import own_slurm
from course.jobs.warm import client, kernels
from course.runs import run as runs
from course.runs.run import PROJECT, Run

SCRIPTS = Path(__file__).parent / "scripts"
CONFIG = rung("baseline", quick=True)
DEADLINE_S = 120  # a job of somebody else may hold this machine's turn meanwhile

# A process that executes this has the networks of narrow.py, which train in a tenth of the time.
NARROW = f"""
import sys
sys.path.insert(0, {str(SCRIPTS)!r})
import narrow
narrow.use()
"""

# Sites whose job of two GPUs has both of Slurm's nodes for itself. So have eight GPUs, but each of
# their tasks starts a Python of its own.
WHOLE = 'executor = "slurm"\nnodes = 2\ngpus_per_node = 1\nsbatch = ["exclusive"]\n'
SITES = f'[whole]\n{WHOLE}[urgent]\n{WHOLE}partition = "urgent"\n'


# Where the first of several test processes notes the place of its server of warm starts, which then
# forks one for each of the others; None: there are no others.
FIRST: Path | None = None

both_ways = pytest.mark.parametrize("runs_root", ["cold", "warm"], indirect=True)


def only(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process start jobs cold alone, or warm alone."""
    if how == "cold":
        monkeypatch.setenv("COURSE_WARM", "0")
        return
    if sys.platform != "linux":
        pytest.skip("a warm start forks, which Linux alone does well")
    monkeypatch.delenv("COURSE_WARM", raising=False)
    warm_up()
    # A busy machine may let the server wait; its answer must come nevertheless.
    monkeypatch.setattr(client, "ANSWER_S", 60)

    def refuse(*_: Any, **__: Any) -> None:
        pytest.fail("the server of warm starts has not taken the job")

    monkeypatch.setattr(client, "start_server", refuse)  # what a cold start ends with


def warm_up() -> None:
    """Have a server of warm starts that answers, where one may; starting it takes ten seconds."""
    if not client.is_wanted():
        return
    known = client.name(), client.signature()  # to find them takes longer than to ask
    if is_warm(*known):
        return
    with FileLock(FIRST.with_suffix(".lock")) if FIRST else nullcontext():
        if not (FIRST and FIRST.exists() and fork_server(FIRST.read_text(), *known)):
            client.start_server()
        eventually(lambda: is_warm(*known), "a server of warm starts")
        if FIRST and not FIRST.exists():
            FIRST.write_text(tempfile.gettempdir())


def fork_server(place: str, *known: str) -> bool:
    """Have a server that serves in `place` fork one for this test process, if it can."""
    ours = ("COURSE_", "SUBMITIT_", "OMP_NUM_THREADS")  # as `client.start_server` leaves them out
    env = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
    folder = Path(tempfile.mkdtemp())
    ends = [str(folder / name) for name in ("printed.out", "printed.err", "printed.code")]
    script, user = str(SCRIPTS / "serves.py"), json.dumps(client.user())
    command = [sys.executable, "-m", "as_new", *ends, script, *known, user]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", place)
        forked = kernels.start(command, folder, env)
    if forked:
        forked.wait(DEADLINE_S)
    return forked is not None


def is_warm(name: str = "", signature: str = "") -> bool:
    """Is there a server of warm starts that would take a job of this process?"""
    try:
        with client.connected(name or client.name()) as server:
            told = client.ask(server, {"look": True})["signature"]
            return told == (signature or client.signature())
    except (OSError, ValueError):
        return False


def launch(script: str, **options: Any) -> Run:
    """Launch a script of tests/scripts with the quick config."""
    return jobs.launch(SCRIPTS / script, options.pop("config", CONFIG), **options)


def prepared(
    folder: Path, text: str, config: Config, *, gpus: int = 1, script: str = "exercises/train.py"
) -> Run:
    """A run's folder with this script in it, as `launch` makes it; nothing is started."""
    folder.mkdir(parents=True)
    (folder / "train.py").write_text(text)
    (folder / "config.json").write_text(config.to_json())
    asked = {
        "rung": config.rung,
        "site": "local",
        "script": script,
        "gpus": gpus,
        "config": asdict(config),
    }
    (folder / "launch.json").write_text(json.dumps(asked))
    return Run(folder)


def by_fork() -> str:
    """What a script begins with that Slurm starts, and a fork is to execute in its place."""
    if not client.is_wanted():
        return ""
    warm_up()
    known = client.name(), client.signature(), client.user()
    return f"import as_forked\nas_forked.execute{known!r}\n"


def narrow_solution(folder: Path, also: str = "", name: str = "train.py", first: str = "") -> Path:
    """The solution, which trains narrow networks: where what a network learns is not the subject.

    Args:
        folder: where the script is put.
        also: more that it executes before it trains.
        name: of the solution.
        first: what it begins with.
    """
    script = folder / name
    solution, end = (PROJECT / "solutions" / name).read_text(), 'if __name__ == "__main__":'
    assert solution.count(end) == 1
    script.write_text(first + solution.replace(end, NARROW + also + end))
    return script


def train_together(
    of: Iterable[Run], timeout_s: float = 900, *, narrow: bool = True, **env: str
) -> str:
    """Train prepared runs one after another in one process: importing torch takes longer.

    Returns:
        What they printed.
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
    """As `python SCRIPT ARGUMENT…` ends, but forked where that can be: PyTorch is imported there.

    Args:
        folder: an empty place for what it prints.
    """
    command = [sys.executable, "-u", str(script), *arguments]
    warm_up()
    out, err, code = (folder / name for name in ("printed.out", "printed.err", "printed.code"))
    module = [sys.executable, "-m", "as_new", *map(str, (out, err, code, script)), *arguments]
    process = kernels.start(module, folder, env)
    if process is None:
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=timeout_s)
    try:
        process.wait(timeout_s)
    finally:
        process.kill()
    ended = int(code.read_text()) if code.exists() else -signal.SIGKILL
    return subprocess.CompletedProcess(command, ended, out.read_text(), err.read_text())


def run_ranks(script: Path, *arguments: str, folder: Path) -> list[subprocess.CompletedProcess]:
    """Two processes of a script, each as `run_forked`; its last argument is the rank."""
    places = [folder / rank for rank in "01"]
    for place in places:
        place.mkdir()
    warm_up()

    def run(place: Path) -> subprocess.CompletedProcess:
        return run_forked(script, *arguments, place.name, folder=place, env=dict(os.environ))

    with ThreadPoolExecutor() as pool:
        return [*pool.map(run, places)]


def launch_running(script: str, **options: Any) -> Run:
    """Launch, and come back when it has its turn."""
    run = launch(script, **options)
    eventually(lambda: jobs.refresh(run) == "running", f"{run} runs")
    return run


def release(run: Run) -> None:
    """Let a run of holds.py end."""
    (run.folder / "go").touch()


def over(run: Run) -> Run:
    """The run once it is over, however it ended."""
    return jobs.wait(run, check=False, timeout_s=DEADLINE_S)


def printed(run: Run) -> str:
    """All that the tasks of the run printed on standard output."""
    return "\n".join(path.read_text() for path in run.logs if path.suffix == ".out")


def eventually(condition: Callable[[], bool], what: str, timeout_s: float = DEADLINE_S) -> None:
    """Wait until the condition holds; the test fails where it does not in time.

    What takes long is asked for more rarely: it may be a command of Slurm's, or all processes.
    """
    begun = time.monotonic()
    while not condition():
        waited_s = time.monotonic() - begun
        if waited_s > timeout_s:
            pytest.fail(f"not within {timeout_s:g} s: {what}")
        time.sleep(min(0.05 + waited_s / 20, 0.4))


def start_python(script: str, *arguments: Any, **options: Any) -> subprocess.Popen:
    """A process of its own, as of another terminal, at the head of a process group."""
    command = [sys.executable, "-u", str(SCRIPTS / script), *map(str, arguments)]
    with signals_of_a_terminal():
        return subprocess.Popen(command, start_new_session=True, text=True, **options)


@contextmanager
def signals_of_a_terminal() -> Iterator[None]:
    """A test run in a shell's background ignores SIGINT, one under nohup SIGHUP: do not hand on."""
    wanted = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    kept = {number: signal.signal(number, handler) for number, handler in wanted.items()}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def processes_of(root: Path) -> list[psutil.Process]:
    """Every living process that was started for this runs folder, whoever its parent is."""
    return [process for process in psutil.process_iter() if _belongs(process, root)]


def _belongs(process: psutil.Process, root: Path) -> bool:
    try:
        return process.environ().get("COURSE_RUNS") == str(root)
    except psutil.Error:  # it ended meanwhile, or is a zombie
        return False


def trainings_of(run: Run) -> int:
    """How many processes execute the run's snapshot, whether or not anybody watches them."""
    script = str(run.script)
    return sum(script in command for command in _commands(run.folder.parent))


def _commands(root: Path) -> list[list[str]]:
    commands = []
    for process in processes_of(root):
        with suppress(psutil.Error):  # it ended meanwhile
            commands.append(process.cmdline())
    # Python's resource tracker ends with the process that uses it, which may be the test's own.
    return [
        command for command in commands if "multiprocessing.resource_tracker" not in str(command)
    ]


def expect_no_process(root: Path, timeout_s: float = 10) -> None:
    """Fail, naming them, where processes of the runs folder go on."""
    deadline = time.monotonic() + timeout_s
    while left := _commands(root):
        assert time.monotonic() < deadline, f"processes are left: {left}"
        time.sleep(0.05)


def end_all_runs(root: Path) -> None:
    """Cancel every run; fail, and kill, where a process is left after that."""
    for run in runs.all_jobs():
        jobs.cancel(run)
    try:
        expect_no_process(root)
    finally:
        for process in processes_of(root):
            with suppress(psutil.NoSuchProcess):  # it has ended by itself meanwhile
                process.kill()


def slurm_says(*words: str) -> str:
    """What a command of Slurm prints."""
    env = os.environ | own_slurm.environment()
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(autouse=True)
def nothing_left(runs_root: Path) -> Iterator[None]:
    """Each test has a runs folder of its own, and no process of it outlives the test."""
    yield
    end_all_runs(runs_root)


@contextmanager
def small_disk(place: Path, size: str) -> Iterator[Path]:
    """A real file system of this size; the test is skipped where none may be mounted."""
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
    """Another runs folder for a while; its runs are ended afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COURSE_RUNS", str(root))
        try:
            yield root
        finally:
            end_all_runs(root)


@contextmanager
def small_runs_root(place: Path, size: str) -> Iterator[Path]:
    """A runs folder that is a disk of its own, of this size."""
    with small_disk(place, size) as disk, runs_root_at(disk) as root:
        yield root


def fill(folder: Path, but_bytes: int = 0) -> Path:
    """Write a file until the disk has only so much room left; delete it to make room again."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            file.truncate(file.tell() - but_bytes)
    return filler
