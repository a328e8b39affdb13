"""A Slurm whose two nodes are joined by a link of 1 Gbit/s: real namespaces, real traffic."""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from job_helpers import (
    eventually,
    launch,
    nothing_left,  # noqa: F401 - every test of this file ends its runs
    over,
    slurm_says,
)

from course.config import rung
from course.jobs import launch as jobs
from course.jobs import own_slurm
from course.runs.run import PROJECT
from labs.data_parallel.terminal import run_command
from tools.slurm_box import control, setup
from tools.slurm_box.network import PROGRAMS, Network
from tools.slurm_box.setup import NODES, ClusterError, ports

GRADIENTS_MB = 46.758  # of ResNet-18, in fp32: what each of two nodes sends in a step


def obstacle() -> str:
    """Return why no network can be created here; "" if it can."""
    if lacking := [name for name in PROGRAMS if not own_slurm.which(name)]:
        return f"not installed: {', '.join(lacking)}"
    process = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True)
    return process.stderr.strip() if os.geteuid() == 0 else "only root may create a network"


pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(obstacle()), reason=obstacle())]


@pytest.fixture(scope="module")
def home(own_turns: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the folder of a cluster; its ports differ from those of the `cluster` fixture."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("SLURM_CONF", raising=False)
        patch.setenv("COURSE_SLURM", str(tmp_path_factory.mktemp("networked")))
        patch.setenv("COURSE_SLURM_PORT", str(ports()["slurmctld"] + 500))
        try:
            setup.install()
        except ClusterError as error:
            pytest.skip(f"no Slurm here: {error}")
        yield own_slurm.folder()
        control.down()


@pytest.fixture
def network(home: Path) -> Network:
    """Return the running network, at 1 Gbit/s."""
    assert control.up("1gbit")["nodes"] == "2 of 2 ready"
    return Network(home)


def leftovers(network: Network) -> list[str]:
    """Return the network's namespaces and links, and the processes of the cluster."""
    places = [*Path("/run/netns").glob("*"), *Path("/sys/class/net").iterdir()]
    conf = str(network.home / "slurm.conf")
    names = [path.name for path in places if path.name.startswith(network.name)]
    for process in psutil.process_iter(["name", "environ"]):
        if (process.info["environ"] or {}).get("SLURM_CONF") == conf:
            names.append(process.info["name"])
    return names


def config(**changes: object):
    sizes = {"model": "resnet18", "data": "synthetic", "image_px": 32, "val_steps": 0}
    return rung("baseline", quick=True, **sizes, **changes)


@pytest.mark.parametrize("rate", ["1gbps", "0gbit"])
def test_bad_rate_is_named_and_leaves_nothing(home: Path, rate: str) -> None:
    with pytest.raises(ClusterError, match=f"--network {rate}: expected .*100mbit, 1gbit"):
        control.up(rate)
    assert leftovers(Network(home)) == []


def test_gradients_cross_the_link_at_its_rate_until_it_goes_down(
    network: Network, runs_root: Path
) -> None:
    singles = [launch("ok_light.py", site="two-nodes", config=config(seed=n)) for n in (1, 2)]
    assert [over(run).status for run in singles] == ["ok", "ok"]
    before = {node: network.sent_bytes(node) for node in NODES}
    long = config(batch_size=4, steps=500, collective_timeout_s=5)
    run = jobs.launch(PROJECT / "solutions/train.py", long, gpus=2, site="two-nodes")
    eventually(lambda: jobs.steps_done(run) > 5, "it trains")
    assert control.status()["network"].startswith("1Gbit per link; node1 sent")
    link = ["link", "set", "eth0", "down"]
    subprocess.run(["ip", "-n", network.namespace("node2"), *link], check=True)
    began = time.monotonic()
    assert over(run).status == "failed"
    assert time.monotonic() < began + 15
    assert "the network between their nodes is down" in run.record.error
    # Each rank notices it by itself, and a busy machine lets one wait.
    eventually(lambda: len(run.ranks) == 2, "both ranks have their files")
    assert [rank["host"] for rank in run.ranks] == ["node1", "node2"]
    steps = len(run.steps)
    for node in NODES:  # at the start, the first node also sends its weights
        sent_mb = (network.sent_bytes(node) - before[node]) / 1e6
        assert steps * GRADIENTS_MB < sent_mb < (steps + 3) * GRADIENTS_MB
    assert run.steps["step_s"].median() > GRADIENTS_MB * 8e6 / 1e9
    eventually(lambda: slurm_says("squeue", "--noheader") == "", "the other node is free")
    status = control.up("2gbit")  # which also repairs the link
    assert status["nodes"] == "2 of 2 ready" and status["network"].startswith("2Gbit")


def test_ranks_started_by_hand_have_cores_of_their_own_and_name_a_killed_one(
    network: Network, capfd: pytest.CaptureFixture
) -> None:
    srun = "srun --nodes 2 --ntasks-per-node 1"
    cores = slurm_says(*srun.split(), "sh", "-c", "grep Cpus_allowed_list /proc/self/status")
    if psutil.cpu_count() > 1:
        assert len(set(cores.splitlines())) == 2
    names = "RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS"
    names += " MASTER_ADDR=node1 MASTER_PORT=29500"
    script = "labs/data_parallel/by_hand.py"
    run_command(f"{srun} bash -c 'export {names}; python {script}'", send="KILL")
    output = capfd.readouterr().out
    assert "rank 1 is local rank 0 of node2" in output and "node2: task 1: Killed" in output
    assert f"Connection closed by peer [{network.addresses['node2']}]" in output


def test_down_after_crashes_leaves_nothing(network: Network, tmp_path: Path) -> None:
    output = tmp_path / "output.txt"
    slurm_says("sbatch", f"--output={output}", "-N2", "--wrap=hostname; srun sleep 600")
    eventually(lambda: output.exists() and output.read_text() == "node1\n", "the job runs")
    for name in ("slurmctld", "node2"):
        own_slurm.programs(network.home)[name].kill()
    control.down()
    assert leftovers(network) == []
    network.create("1gbit")  # as if `up` had been killed after it
    assert len(leftovers(network)) == 4  # three namespaces, and a link to the bridge
    control.down()
    assert leftovers(network) == []
