"""Several users on one machine: they see others' jobs, may take turns, and end no other queue."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from job_helpers import SCRIPTS, eventually

from course.jobs.local_queue import MACHINE_LOCK
from course.runs.run import PROJECT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not sys.platform.startswith("linux") or os.getuid() != 0,
        reason="to act as other users takes root, on Linux",
    ),
]
ALICE, BOB = 54_321, 54_322  # users need no account to have files and processes
LAUNCH = f"""
from dataclasses import replace
from course.config import rung
from course.jobs import launch
for seed in range(2):
    launch.launch({str(SCRIPTS)!r} + "/sleeps.py", replace(rung("baseline", quick=True), seed=seed))
"""
User = Callable[..., subprocess.CompletedProcess]


def closed(place: Path) -> list[Path]:
    """Return the folders above a place that another user may not enter, the outermost first."""
    user = ["setpriv", f"--reuid={ALICE}", "--clear-groups", "test", "-x"]
    return [x for x in [*place.parents][::-1] if subprocess.run([*user, str(x)]).returncode]


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Return a folder that others may enter: each start of pytest closes its own folders again."""
    with TemporaryDirectory(dir="/tmp", prefix="users-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def run_as(tmp_path: Path) -> Iterator[User]:
    """Run `python ARGUMENTS` as another user, all with one temporary directory.

    If a folder above this Python, its packages or the course is closed to them, such as root's
    home, they see a view of the disk in which they can reach these.
    """
    places = dict.fromkeys(map(Path, (sys.base_prefix, sys.prefix, PROJECT)))
    copies = {place: tmp_path / f"place-{at}" for at, place in enumerate(places) if closed(place)}
    locks = tmp_path / "locks"  # this test's own, as other clones' tests may run, too
    locks.mkdir()
    locks.chmod(0o1777)
    reach = "\n".join(
        [f"mount --bind {locks} {MACHINE_LOCK.parent}"]
        + [f"mkdir -p {copy} && mount --bind {place} {copy}" for place, copy in copies.items()]
        + [f"mount -t tmpfs -o mode=755 tmpfs {top}" for top in {closed(x)[0] for x in copies}]
        + [f"mkdir -p {place} && mount --bind {copy} {place}" for place, copy in copies.items()]
    )
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    temporary.chmod(0o1777)
    sites = tmp_path / "sites.toml"

    def run(uid: int, *arguments: str, **env: str) -> subprocess.CompletedProcess:
        home = tmp_path / str(uid)
        home.mkdir(exist_ok=True)
        os.chown(home, uid, uid)
        env = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(PROJECT),
            "HOME": str(home),
            "TMPDIR": str(temporary),
            "COURSE_RUNS": str(home / "runs"),
            "COURSE_SITES": str(sites),
        } | env
        user = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", sys.executable]
        script = f'set -e\n{reach}\nexec "$@"'
        command = ["unshare", "-m", "sh", "-c", script, "sh", *user, *arguments]
        return subprocess.run(command, env=env, cwd="/", capture_output=True, text=True)

    probe = run(ALICE, "-c", "import course.jobs.launch")
    if probe.returncode:
        pytest.skip(f"another user cannot read the course here: {probe.stderr.strip()[-200:]}")
    yield run
    for uid in (ALICE, BOB):
        run(uid, "-m", "course", "cancel", "--all")
        run(uid, "-c", "from conftest import stop_runners; stop_runners()")


def intervals(home: Path) -> list[list[float]]:
    return [json.loads(path.read_text()) for path in home.glob("runs/*/interval.json")]


def test_users_compute_at_once_or_in_turns_where_the_site_says_so(
    run_as: User, tmp_path: Path
) -> None:
    """The runs of another user cannot be cancelled."""
    homes = [tmp_path / str(uid) for uid in (ALICE, BOB)]
    for uid in (ALICE, BOB):
        done = run_as(uid, "-c", LAUNCH.replace("sleeps.py", "holds.py"))
        assert done.returncode == 0, done.stderr
    eventually(lambda: all([*home.glob("runs/*/started.json")] for home in homes), "both compute")
    done = run_as(ALICE, "-m", "course", "queue")
    assert "one job at a time: baseline-" in done.stdout
    runs = homes[0] / "runs"
    done = run_as(BOB, "-m", "course", "cancel", "--all", COURSE_RUNS=str(runs))
    assert done.returncode == 1 and ", its owner, can change it" in done.stderr
    assert not [*runs.glob("*/record.json")]

    for path in tmp_path.glob("*/runs/*/launch.json"):
        (path.parent / "go").touch()  # ends the run
    (tmp_path / "sites.toml").write_text("[local]\nshared = true\n")
    for uid in (ALICE, BOB):
        assert run_as(uid, "-c", LAUNCH).returncode == 0
    eventually(lambda: len([*tmp_path.glob("*/runs/*/record.json")]) == 8, "all jobs are over")
    every = sorted(interval for home in homes for interval in intervals(home))
    assert len(every) == 4
    assert all(ended <= began for (_, ended), (began, _) in zip(every, every[1:]))


def test_a_link_in_place_of_the_shared_lock_is_refused(run_as: User, tmp_path: Path) -> None:
    (tmp_path / "sites.toml").write_text("[local]\nshared = true\n")
    target = tmp_path / "target"
    code = f"import os; os.symlink({str(target)!r}, {str(MACHINE_LOCK)!r})"
    assert run_as(BOB, "-c", code).returncode == 0
    done = run_as(ALICE, "-m", "course", "run", str(SCRIPTS / "ok_light.py"), "--quick")
    assert done.returncode == 1 and "ask the instructor" in done.stderr
    assert not target.exists()
