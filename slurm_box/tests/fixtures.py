"""A pytest plugin: a cluster for each test process, and what tests of a cluster share."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import slurm_box
from slurm_box.cluster import FIRST_PORT, ports, which
from slurm_box.installation import install
from slurm_box.network import PROGRAMS, Network

DEADLINE_S = 120  # someone else's job may hold what is waited for meanwhile


def eventually(condition: Callable[[], bool], what: str, timeout_s: float = DEADLINE_S) -> None:
    """Wait until the condition holds; fail the test if it does not in time.

    After a long wait, the condition is checked less often, because it may be expensive: a command
    of Slurm, or a list of all processes.
    """
    begun = time.monotonic()
    while not condition():
        waited_s = time.monotonic() - begun
        if waited_s > timeout_s:
            pytest.fail(f"not within {timeout_s:g} s: {what}")
        time.sleep(min(0.05 + waited_s / 20, 0.4))


def slurm_says(*words: str) -> str:
    """Return what a command of Slurm prints."""
    env = os.environ | slurm_box.environment()
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@contextmanager
def in_cluster(home: Path, first_port: int = 0) -> Iterator[None]:
    """Let Slurm's commands use the cluster in this folder, and no other."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("SLURM_CONF", raising=False)
        patch.setenv("SLURM_BOX", str(home))
        if first_port:
            patch.setenv("SLURM_BOX_PORT", str(first_port))
        yield


@pytest.fixture(scope="session", autouse=True)
def own_ports() -> Iterator[None]:
    """Give the cluster of each test process ports of its own."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
    first = int(os.environ.get("SLURM_BOX_PORT", FIRST_PORT))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_BOX_PORT", str(first + 10 * int(worker.removeprefix("gw"))))
        yield


def _install_or_skip() -> None:
    try:
        install()
    except slurm_box.ClusterError as error:
        pytest.skip(f"no Slurm here: {error}")


@pytest.fixture(scope="session")
def cluster(own_ports: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Start a real Slurm for this test process; skip where it cannot be installed."""
    home = tmp_path_factory.mktemp("slurm")
    with in_cluster(home):
        _install_or_skip()
        slurm_box.up()
    yield home
    with in_cluster(home):
        slurm_box.down()


@pytest.fixture(scope="module")
def slurm(cluster: Path) -> Iterator[Path]:
    """Return the folder of the Slurm that this file's tests use."""
    with in_cluster(cluster):
        slurm_box.up()  # the file before may have ended some of it
        yield cluster


@pytest.fixture(scope="module")
def networked(own_ports: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the folder of a cluster that is down; it has its own ports, and can have a network."""
    if os.geteuid() != 0:
        pytest.skip("only root may create a network")
    if lacking := [name for name in PROGRAMS if not which(name)]:
        pytest.skip(f"not installed: {', '.join(lacking)}")
    process = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True)
    if process.returncode:
        pytest.skip(f"no network namespaces: {process.stderr.strip()}")
    with in_cluster(tmp_path_factory.mktemp("networked"), ports()["slurmctld"] + 500):
        _install_or_skip()
        yield slurm_box.folder()
        slurm_box.down()


@pytest.fixture
def network(networked: Path) -> Network:
    """Return the running network, at 1 Gbit/s."""
    assert slurm_box.up("1gbit")["nodes"] == "2 of 2 ready"
    return Network(networked)
