"""A Slurm whose two nodes are joined by a link of 1 Gbit/s: real namespaces, real traffic."""

import subprocess
import time
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

import slurm_box
from course.config import rung
from course.jobs import launch as jobs
from course.runs.run import PROJECT
from labs.data_parallel.terminal import run_command
from slurm_box.cluster import NODES
from slurm_box.network import Network

GRADIENTS_MB = 46.758  # of ResNet-18, in fp32: what each of two nodes sends in a step


pytestmark = pytest.mark.slow


def config(**changes: object):
    sizes = {"model": "resnet18", "data": "synthetic", "image_px": 32, "val_steps": 0}
    return rung("baseline", quick=True, **sizes, **changes)


def test_gradients_cross_the_link_at_its_rate_until_it_goes_down(
    network: Network, runs_root: Path
) -> None:
    singles = [launch("ok_light.py", site="two-nodes", config=config(seed=n)) for n in (1, 2)]
    assert [over(run).status for run in singles] == ["ok", "ok"]
    before = {node: network.sent_bytes(node) for node in NODES}
    long = config(batch_size=4, steps=500, collective_timeout_s=5)
    run = jobs.launch(PROJECT / "solutions/train.py", long, gpus=2, site="two-nodes")
    eventually(lambda: jobs.steps_done(run) > 5, "it trains")
    assert slurm_box.status()["network"].startswith("1Gbit per link; node1 sent")
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
    status = slurm_box.up("2gbit")  # which also repairs the link
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
