"""The Slurm of this machine: started for real, twice, after a crash, and ended without a trace."""

import os
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from job_helpers import eventually

from course.jobs import own_slurm
from tools.slurm_box import control, setup
from tools.slurm_box.setup import ClusterError, ports

pytestmark = pytest.mark.slow


def command(*words: str) -> str:
    env = os.environ | own_slurm.environment()
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def submit(tmp_path: Path, script: str, *options: str) -> tuple[str, Path]:
    output = tmp_path / "output.txt"
    number = command("sbatch", "--parsable", f"--output={output}", *options, f"--wrap={script}")
    return number, output


def ended(number: str) -> str:
    """Wait until a job's state in accounting is final, and return it."""

    def state() -> str:
        found = command("sacct", "-X", "-n", "-P", "-j", number, "-o", "State")
        return "" if found in ("PENDING", "RUNNING") else found

    eventually(state, f"job {number} is over")
    return state()


def test_a_job_of_two_nodes_runs_and_is_accounted(slurm: Path, tmp_path: Path) -> None:
    words = "srun sh -c 'echo $SLURM_NODEID $SLURM_PROCID $CUDA_VISIBLE_DEVICES'"
    number, output = submit(tmp_path, words, "-N2", "--ntasks-per-node=2", "--gres=gpu:2")
    assert ended(number) == "COMPLETED"
    said = ["0 0 0,1", "0 1 0,1", "1 2 0,1", "1 3 0,1"]  # node, rank, devices
    assert sorted(output.read_text().splitlines()) == said


def test_up_again_starts_nothing(slurm: Path) -> None:
    before = {name: process.pid for name, process in own_slurm.programs(slurm).items()}
    assert control.up()["nodes"] == "2 of 2 ready"
    assert {name: process.pid for name, process in own_slurm.programs(slurm).items()} == before
    assert len(before) == 6


def test_up_after_a_crash_mends_it(slurm: Path, tmp_path: Path) -> None:
    names = ("munged", "mariadbd", "slurmdbd", "slurmctld", "node2")
    for name in names:
        own_slurm.programs(slurm)[name].send_signal(signal.SIGKILL)
    eventually(lambda: not set(names) & set(own_slurm.programs(slurm)), "they are gone")
    assert control.up()["nodes"] == "2 of 2 ready"
    number, _ = submit(tmp_path, "true")
    assert ended(number) == "COMPLETED"


def test_a_controller_killed_under_a_job_leaves_no_drained_node(
    slurm: Path, tmp_path: Path
) -> None:
    """It forgets that the job has started, restarts it, and drains the node that still has it."""
    number, output = submit(tmp_path, "echo begun; sleep 30", "-N2", "--gres=gpu:4")
    eventually(lambda: output.exists() and "begun" in output.read_text(), "the job runs")
    own_slurm.programs(slurm)["slurmctld"].kill()
    eventually(lambda: "slurmctld" not in own_slurm.programs(slurm), "it is gone")
    assert control.up()["nodes"] == "2 of 2 ready"
    command("scancel", number)
    later, _ = submit(tmp_path, "true")
    assert ended(later) == "COMPLETED"


def test_daemons_listen_on_loopback(slurm: Path) -> None:
    addresses = {
        name: {c.laddr.ip for c in process.net_connections("inet") if c.status == "LISTEN"}
        for name, process in own_slurm.programs(slurm).items()
    }
    # Slurm 22.05's slurmdbd cannot do so; it refuses every request without munge's key.
    assert addresses.pop("slurmdbd") <= {"0.0.0.0", "127.0.0.1"}
    assert all(found <= {"127.0.0.1"} for found in addresses.values()), addresses


def test_its_variables_are_given_while_it_is_up(slurm: Path, monkeypatch) -> None:
    assert own_slurm.environment() == {"SLURM_CONF": str(slurm / "slurm.conf")}
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm/slurm.conf")  # another cluster was chosen
    assert own_slurm.environment() == {}


def left_of(home: Path) -> list[str]:
    """Return every process that was started with the cluster's configuration, and no others."""
    found = []
    for process in psutil.process_iter(["name", "status"]):
        with suppress(psutil.Error):
            if process.environ().get("SLURM_CONF") == str(home / "slurm.conf"):
                found += [process.name()]
    return found


def test_down_leaves_nothing_and_up_goes_on_from_there(slurm: Path, tmp_path: Path) -> None:
    number, output = submit(tmp_path, "echo begun; sleep 600")
    eventually(lambda: output.exists() and "begun" in output.read_text(), "the job runs")
    assert {"slurmctld", "mariadbd", "sleep"} <= set(left_of(slurm))
    assert len(control.down()) == 6
    assert control.down() == [] and own_slurm.environment() == {}
    assert left_of(slurm) == []
    assert not any(setup.listens(port) for port in ports().values())
    taken = pytest.raises(
        ClusterError, match="port [0-9]+ is taken.*slurmctld needs it: .*COURSE_SLURM_PORT"
    )
    with socket.create_server(("127.0.0.1", ports()["slurmctld"])), taken:
        control.up()
    assert own_slurm.programs(slurm) == {}  # all started programs were ended
    assert control.up()["nodes"] == "2 of 2 ready"
    later, _ = submit(tmp_path, "true")
    assert int(later) > int(number)  # its state was kept: no number is reused


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "missing", lambda: ["slurmctld", "munged"])
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ClusterError, match="slurmctld, munged. On Debian.* as root: apt-get"):
        control.up()
