"""Fixtures that several test files use."""

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

# Test processes that share the cores: threads that wait for each other would mostly wait.
if int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) > 1:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

from course import config
from course.data import default_set
from course.data.default_set import Recipe
from course.jobs import local_queue
from course.runs.user_folder import user_folder

# Small sizes are enough: no test asserts a speed.
config.QUICK |= {"image_px": 64, "steps": 8, "budget_s": 0.0}

pytest_plugins = ["slurm_box.tests.fixtures"]
TESTS = Path(__file__).resolve().parent / "tests"
STARTS_JOBS = {"nothing_left", "here", "cluster", "networked"}  # fixtures of tests that do


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark tests that start jobs."""
    if STARTS_JOBS & set(item.fixturenames):
        item.add_marker(pytest.mark.slow)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that have slow tests, so that none is alone at the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(scope="session", autouse=True)
def own_turns(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give the jobs of each test process a separate queue, apart from the user's runs and class."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("COURSE_CLASS", "COURSE_QUICK", "COURSE_SITE"):
            patch.delenv(name, raising=False)
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("turns")))
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.setenv("COURSE_TRUST", "/")  # where the checkout is, others may write
        patch.setattr(tempfile, "tempdir", None)  # or it stays that of before
        try:
            yield
        finally:
            stop_runners()


@pytest.fixture(autouse=True)
def same_environment() -> Iterator[None]:
    """Fail a test that leaves a variable set: the next tests of its process would see it."""
    watched = ("COURSE_", "MASTER_", "RANK", "SBATCH", "SLURM", "TRITON_", "WORLD_SIZE")
    before = {name: x for name, x in os.environ.items() if name.startswith(watched)}
    yield
    after = {name: x for name, x in os.environ.items() if name.startswith(watched)}
    assert before == after, "the test changed variables: use monkeypatch.setenv"


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> Iterator[None]:
    """React to SIGINT, as a notebook's kernel does; a shell's background process ignores it.

    Its jobs are then others, and ask for a server of warm starts of their own.
    """
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@pytest.fixture(scope="session", autouse=True)
def importable_helpers() -> Iterator[None]:
    """Let processes that tests start import the functions in tests/start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(TESTS / "start"), prepend=os.pathsep)
        yield


@pytest.fixture
def runs_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty runs folder, so that no test sees the user's runs."""
    root = tmp_path / "runs"
    monkeypatch.setenv("COURSE_RUNS", str(root))
    return root


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder that contains another user's modules.

    Returns:
        The file into which they write their names when they are imported.
    """
    evidence = tmp_path / "evidence"
    for name in ("submitit", "course", "torch", "numpy", "cloudpickle", "psutil", "tensorboard"):
        place = tmp_path / "shared" / name
        place.mkdir(parents=True)
        text = f"open({str(evidence)!r}, 'a').write({name!r})\nraise SystemExit(3)\n"
        (place / "__init__.py").write_text(text)
    monkeypatch.chdir(tmp_path / "shared")
    return evidence


@pytest.fixture(scope="session")
def tiny_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a default set of only 48 files, shared by all test processes."""
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    return default_set.ensure(base / "tiny", Recipe(train_per_class=2, val_per_class=1))


@pytest.fixture(scope="session")
def small_set(tiny_set: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the same photographs at a quarter of their width, which decode faster."""
    root = tmp_path_factory.mktemp("small")
    for path in tiny_set.rglob("*.jpg"):
        target = root / path.relative_to(tiny_set)
        target.parent.mkdir(parents=True, exist_ok=True)
        with Image.open(path) as image:
            image.resize((image.width // 4, image.height // 4)).save(target, quality=90)
    return root


@pytest.fixture
def user_sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of the user's file of sites."""
    path = tmp_path / "my_sites.toml"
    monkeypatch.setenv("COURSE_SITES", str(path))
    return path


def stop_runners() -> None:
    """End this user's supervisors, and with them the jobs that compute."""
    for queue in user_folder().glob("queue*"):
        if local_queue.is_served(queue):
            os.kill(int((queue / "pid").read_text()), signal.SIGTERM)
    for runner in local_queue._runners:
        runner.wait()
