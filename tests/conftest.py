"""Fixtures that several test files use."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import job_helpers
import pytest
from filelock import FileLock

# Test processes that share the cores: threads that wait for each other would mostly wait.
if int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) > 1:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

from course import config
from course.data import default_set
from course.data.default_set import Recipe
from course.jobs.cluster import control
from course.jobs.cluster.setup import FIRST_PORT, ClusterError
from course.jobs.warm import client

# What the tests look at shows at any size, but for speeds, which no test asserts.
config.QUICK |= {"image_px": 64, "steps": 8, "budget_s": 0.0}


@pytest.fixture(scope="session", autouse=True)
def own_turns(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Jobs of a test process take turns among themselves, and wait for no run of the user's.

    Each process has a Slurm of its own, so ports of its own.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("turns")))
        worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
        first = int(os.environ.get("COURSE_SLURM_PORT", FIRST_PORT))
        patch.setenv("COURSE_SLURM_PORT", str(first + 10 * int(worker.removeprefix("gw"))))
        patch.setattr(tempfile, "tempdir", None)  # or it stays that of before
        try:
            yield
        finally:
            client.stop_all()


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A real Slurm of the test file's own; skipped where its programs cannot be had."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("SLURM_CONF", raising=False)
        patch.setenv("COURSE_SLURM", str(tmp_path_factory.mktemp("slurm")))
        try:  # one test process after another: the first may have to install packages
            with FileLock(tmp_path_factory.getbasetemp().parent / "slurm.lock"):
                control.up()
        except ClusterError as error:
            pytest.skip(f"no Slurm here: {error}")
        yield control.folder()
        control.down()


@pytest.fixture
def runs_root(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """An empty place for runs, so that no test sees the user's own.

    Its parameter, if it has one, says how this process launches: "cold" or "warm".
    """
    if how := getattr(request, "param", None):
        job_helpers.only(how, monkeypatch)
    root = tmp_path / "runs"
    monkeypatch.setenv("COURSE_RUNS", str(root))
    return root


@pytest.fixture(scope="session")
def tiny_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A default set of 48 files, real in everything but their number."""
    recipe = Recipe(train_per_class=2, val_per_class=1)
    return default_set.ensure(tmp_path_factory.mktemp("data") / "tiny", recipe)


@pytest.fixture
def user_sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's own file of sites."""
    path = tmp_path / "my_sites.toml"
    monkeypatch.setenv("COURSE_SITES", str(path))
    return path
