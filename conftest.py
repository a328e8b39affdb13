"""Fixtures that several test files use."""

import atexit
import gc
import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import pytest
from PIL import Image

# Test processes that share the cores: threads that wait for each other would mostly wait.
if int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) > 1:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

from course import config
from course.data import default_set
from course.data.default_set import Recipe
from course.jobs.local_queue import stop_runners
from tools.slurm_box import control
from tools.slurm_box.setup import FIRST_PORT, ClusterError

# What the tests look at shows at any size, but for speeds, which no test asserts.
config.QUICK |= {"image_px": 64, "steps": 8, "budget_s": 0.0}


# What takes longest begins first, or a worker would be alone with it at the end: tests that mostly
# wait beside others that compute.
PROJECT = Path(__file__).resolve().parent
TESTS = PROJECT / "tests"
SLOWEST_FIRST = (
    "slurm-jobs",
    "slurm-others",
    "checks/test_answers.py",
    "jobs/test_in_turns.py",
    "notebooks/test_notebooks.py",
    "jobs/test_endings.py",
    "labs/test_loading.py",
    "tools/test_rehearsal.py",
    "race/test_entering.py",
    "predictions",
    "timm",
    "labs/test_communication.py",
    "training/test_data_parallel.py",
    "jobs/",
    "training/",
    "idr_pytools/",
    "scipy",
    "labs/",
)
# Files whose tests do the same once in a process.
TOGETHER = {
    "predictions": (  # of the same steps of ResNet-50
        "tools/test_pages.py",
        "training/test_memory.py",
        "labs/test_anatomy.py",
        "analysis/test_roofline.py",
    ),
    "timm": (  # is imported
        "training/test_optimizers.py",
        "training/test_stages.py",
        "labs/test_large_batch.py",
        "labs/test_pipelines.py",
        "labs/test_tensors.py",
    ),
    "scipy": (  # is imported, by scikit-learn or for a chance
        "race/test_boards.py",
        "race/test_race.py",
        "labs/test_learning.py",
        "labs/test_numerics.py",
    ),
}
GROUPS = {file: group for group, files in TOGETHER.items() for file in files}
STARTS_JOBS = {"nothing_left", "here", "slurm", "cluster"}  # fixtures of tests that do


def pytest_itemcollected(item: pytest.Item) -> None:
    """Say which tests go to a worker together: those of a file, and those that share a Slurm."""
    item.add_marker(pytest.mark.xdist_group(group_of(item)))
    if STARTS_JOBS & set(item.fixturenames):
        item.add_marker(pytest.mark.slow)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the slowest first; tests of a file stay in their order."""
    items.sort(key=lambda item: place_of(item.get_closest_marker("xdist_group").args[0]))


def pytest_collection(session: pytest.Session) -> None:
    """Importing makes a million objects that stay: nobody looks for garbage among them."""
    gc.disable()
    is_one_of_some = "PYTEST_XDIST_WORKER" in os.environ
    if is_one_of_some and session.config.args == session.config.getini("testpaths"):
        import_share(session)


def import_share(session: pytest.Session) -> None:
    """Import a share of the files, where several processes are about to import all of them.

    In a new clone each would rewrite the assertions of every file, and all of them at once.
    """
    every = sorted([*TESTS.rglob("test_*.py"), *PROJECT.glob("labs/*/tests/test_*.py")])
    first = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw"))
    for path in every[first :: int(os.environ["PYTEST_XDIST_WORKER_COUNT"])]:
        with suppress(pytest.Collector.CollectError, pytest.skip.Exception):  # told in its turn
            _ = pytest.Module.from_parent(session, path=path).obj


def pytest_collection_finish() -> None:
    """From here on a pass looks for garbage among what tests make, alone."""
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)  # as the processes that tests start have it
    atexit.register(gc.unfreeze)  # or libraries report them as leaked
    gc.enable()


def group_of(item: pytest.Item) -> str:
    """Tests of a group run one after another in the same process, and share what they made."""
    file = file_of(item.path)
    if "slurm" in item.fixturenames:  # two, each with a Slurm of its own: they mostly wait
        return "slurm-jobs" if file.startswith("jobs/") else "slurm-others"
    return item.nodeid if file == "notebooks/test_notebooks.py" else GROUPS.get(file, file)


@cache  # four thousand tests are of a hundred files
def file_of(path: Path) -> str:
    """A test file's path below tests/, or "labs/test_x.py"."""
    if path.is_relative_to(TESTS):
        return path.relative_to(TESTS).as_posix()
    return f"labs/{path.name}"


@cache
def place_of(group: str) -> int:
    """A group's place in the order of the slowest."""
    found = [place for place, name in enumerate(SLOWEST_FIRST) if name in group]
    return found[0] if found else len(SLOWEST_FIRST)


@pytest.fixture(scope="session", autouse=True)
def own_turns(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Jobs of a test process take turns among themselves, and wait for no run of the user's.

    Each process has a Slurm of its own, so ports of its own.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("turns")))
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
        first = int(os.environ.get("COURSE_SLURM_PORT", FIRST_PORT))
        patch.setenv("COURSE_SLURM_PORT", str(first + 10 * int(worker.removeprefix("gw"))))
        patch.setattr(tempfile, "tempdir", None)  # or it stays that of before
        try:
            yield
        finally:
            stop_runners()


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> Iterator[None]:
    """A run in a shell's background ignores SIGINT, a notebook's kernel does not.

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
    """Processes that tests start can import the functions in tests/start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(TESTS / "start"), prepend=os.pathsep)
        yield


@pytest.fixture(scope="session")
def cluster(own_turns: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A real Slurm of the test run's own; skipped where its programs cannot be had."""
    home = tmp_path_factory.mktemp("slurm")
    with in_cluster(home):
        try:
            control.up()
        except ClusterError as error:
            pytest.skip(f"no Slurm here: {error}")
    yield home
    with in_cluster(home):
        control.down()


@pytest.fixture(scope="module")
def slurm(cluster: Path) -> Iterator[Path]:
    """The folder of the Slurm that the tests of this file speak to."""
    with in_cluster(cluster):
        control.up()  # the file before may have ended some of it
        yield cluster


@contextmanager
def in_cluster(home: Path) -> Iterator[None]:
    """Let Slurm's commands speak to the cluster in this folder, and to no other."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("SLURM_CONF", raising=False)
        patch.setenv("COURSE_SLURM", str(home))
        yield


@pytest.fixture
def runs_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty place for runs, so that no test sees the user's own."""
    root = tmp_path / "runs"
    monkeypatch.setenv("COURSE_RUNS", str(root))
    return root


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory is a folder with modules that someone else has put there.

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
    """A default set of 48 files, real in everything but their number; one for all processes."""
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    return default_set.ensure(base / "tiny", Recipe(train_per_class=2, val_per_class=1))


@pytest.fixture(scope="session")
def small_set(tiny_set: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same photographs at a quarter of their width, where decoding is not the subject."""
    root = tmp_path_factory.mktemp("small")
    for path in tiny_set.rglob("*.jpg"):
        target = root / path.relative_to(tiny_set)
        target.parent.mkdir(parents=True, exist_ok=True)
        with Image.open(path) as image:
            image.resize((image.width // 4, image.height // 4)).save(target, quality=90)
    return root


@pytest.fixture
def user_sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's own file of sites."""
    path = tmp_path / "my_sites.toml"
    monkeypatch.setenv("COURSE_SITES", str(path))
    return path
