"""A cluster with a network between its nodes: what is refused, and that nothing is left of it."""

from pathlib import Path

import psutil
import pytest

import slurm_box
from slurm_box.cluster import programs
from slurm_box.network import Network
from slurm_box.tests.fixtures import eventually, slurm_says

pytestmark = pytest.mark.slow


def leftovers(network: Network) -> list[str]:
    """Return the network's namespaces and links, and the processes of the cluster."""
    places = [*Path("/run/netns").glob("*"), *Path("/sys/class/net").iterdir()]
    conf = str(network.home / "slurm.conf")
    names = [path.name for path in places if path.name.startswith(network.name)]
    for process in psutil.process_iter(["name", "environ"]):
        if (process.info["environ"] or {}).get("SLURM_CONF") == conf:
            names.append(process.info["name"])
    return names


@pytest.mark.parametrize("rate", ["1gbps", "0gbit"])
def test_bad_rate_is_named_and_leaves_nothing(networked: Path, rate: str) -> None:
    expected = f"--network {rate}: expected .*100mbit, 1gbit"
    with pytest.raises(slurm_box.ClusterError, match=expected):
        slurm_box.up(rate)
    assert leftovers(Network(networked)) == []


def test_down_after_crashes_leaves_nothing(network: Network, tmp_path: Path) -> None:
    output = tmp_path / "output.txt"
    slurm_says("sbatch", f"--output={output}", "-N2", "--wrap=hostname; srun sleep 600")
    eventually(lambda: output.exists() and output.read_text() == "node1\n", "the job runs")
    for name in ("slurmctld", "node2"):
        programs(network.home)[name].kill()
    slurm_box.down()
    assert leftovers(network) == []
    network.create("1gbit")  # as if `up` had been killed after it
    assert len(leftovers(network)) == 4  # three namespaces, and a link to the bridge
    slurm_box.down()
    assert leftovers(network) == []
