"""The Slurm of this machine: started for real, twice, after a crash, and ended without a trace."""

import os
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

import slurm_box
from slurm_box import control, installation
from slurm_box.cluster import ports, programs, which
from slurm_box.tests.fixtures import eventually, slurm_says

pytestmark = pytest.mark.slow


def submit(tmp_path: Path, script: str, *options: str) -> tuple[str, Path]:
    output = tmp_path / "output.txt"
    number = slurm_says("sbatch", "--parsable", f"--output={output}", *options, f"--wrap={script}")
    return number, output


def ended(number: str) -> str:
    """Wait until a job's state in accounting is final, and return it."""

    def state() -> str:
        found = slurm_says("sacct", "-X", "-n", "-P", "-j", number, "-o", "State")
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
    before = {name: process.pid for name, process in programs(slurm).items()}
    assert slurm_box.up()["nodes"] == "2 of 2 ready"
    assert {name: process.pid for name, process in programs(slurm).items()} == before
    assert len(before) == 6


def test_up_after_a_crash_mends_it(slurm: Path, tmp_path: Path) -> None:
    names = ("munged", "mariadbd", "slurmdbd", "slurmctld", "node2")
    for name in names:
        programs(slurm)[name].send_signal(signal.SIGKILL)
    eventually(lambda: not set(names) & set(programs(slurm)), "they are gone")
    assert slurm_box.up()["nodes"] == "2 of 2 ready"
    number, _ = submit(tmp_path, "true")
    assert ended(number) == "COMPLETED"


def test_a_node_that_answers_pings_is_not_ready_before_it_has_registered(slurm: Path) -> None:
    """The controller does not know the devices of its GPUs yet, and its jobs would see none."""
    conf = slurm / "lost.conf"
    own = (slurm / "slurm.conf").read_text()
    conf.write_text(own.replace(f"SlurmctldPort={ports()['slurmctld']}", "SlurmctldPort=1"))
    for name in ("slurmctld", "node1"):
        programs(slurm)[name].kill()
    eventually(lambda: not {"slurmctld", "node1"} & set(programs(slurm)), "they are gone")
    slurmd = [which("slurmd"), "-D", "-N", "node1"]
    lost = subprocess.Popen(slurmd, env=os.environ | {"SLURM_CONF": str(conf)})
    try:
        controller = next(d for d in installation.daemons(slurm) if d.name == "slurmctld")
        control._start(controller, slurm)
        eventually(lambda: control._ready(slurm) == 2, "sinfo shows both nodes as idle")
        assert not control._nodes_are_ready(slurm)
    finally:
        lost.kill()
        lost.wait()
    assert slurm_box.up()["nodes"] == "2 of 2 ready"


def test_a_controller_killed_under_a_job_leaves_no_drained_node(
    slurm: Path, tmp_path: Path
) -> None:
    """It forgets that the job has started, restarts it, and drains the node that still has it."""
    number, output = submit(tmp_path, "echo begun; sleep 30", "-N2", "--gres=gpu:4")
    eventually(lambda: output.exists() and "begun" in output.read_text(), "the job runs")
    programs(slurm)["slurmctld"].kill()
    eventually(lambda: "slurmctld" not in programs(slurm), "it is gone")
    assert slurm_box.up()["nodes"] == "2 of 2 ready"
    slurm_says("scancel", number)
    later, _ = submit(tmp_path, "true")
    assert ended(later) == "COMPLETED"


def test_daemons_listen_on_loopback(slurm: Path) -> None:
    addresses = {
        name: {c.laddr.ip for c in process.net_connections("inet") if c.status == "LISTEN"}
        for name, process in programs(slurm).items()
    }
    # Slurm 22.05's slurmdbd cannot do so; it refuses every request without munge's key.
    assert addresses.pop("slurmdbd") <= {"0.0.0.0", "127.0.0.1"}
    assert all(found <= {"127.0.0.1"} for found in addresses.values()), addresses


def test_its_variables_are_given_while_it_is_up(slurm: Path, monkeypatch) -> None:
    assert slurm_box.environment() == {"SLURM_CONF": str(slurm / "slurm.conf")}
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm/slurm.conf")  # another cluster was chosen
    assert slurm_box.environment() == {}


def left_of(home: Path) -> list[str]:
    """Return every process that was started with the cluster's configuration, and no others."""
    found = []
    for process in psutil.process_iter(["name", "status"]):
        with suppress(psutil.Error):
            if process.environ().get("SLURM_CONF") == str(home / "slurm.conf"):
                found += [process.name()]
    return found


def test_down_leaves_nothing_and_up_goes_on_from_there(slurm: Path, tmp_path: Path) -> None:
    number, _ = submit(tmp_path, "sleep 600")
    eventually(lambda: {"slurmctld", "mariadbd", "sleep"} <= set(left_of(slurm)), "the job runs")
    assert len(slurm_box.down()) == 6
    assert slurm_box.down() == [] and slurm_box.environment() == {}
    assert left_of(slurm) == []
    assert all(installation.obstacle(port) for port in ports().values())
    taken = pytest.raises(
        slurm_box.ClusterError, match="port [0-9]+ is taken.*slurmctld needs it: .*SLURM_BOX_PORT"
    )
    with socket.create_server(("127.0.0.1", ports()["slurmctld"])), taken:
        slurm_box.up()
    assert programs(slurm) == {}  # all started programs were ended
    assert slurm_box.up()["nodes"] == "2 of 2 ready"
    later, _ = submit(tmp_path, "true")
    assert int(later) > int(number)  # its state was kept: no number is reused


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_BOX", str(tmp_path / "new"))
    monkeypatch.setattr(installation, "missing", lambda: ["slurmctld", "munged"])
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(
        slurm_box.ClusterError, match="slurmctld, munged. On Debian.* as root: apt-get"
    ):
        slurm_box.up()


def test_a_database_leaves_the_tables_of_another_that_starts_alone(
    slurm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    (tmp_path / "#sql-temptable-1-1-1.MAI").touch()
    (tmp_path / "database").mkdir()
    installation._make_database(tmp_path / "database")
    assert (tmp_path / "#sql-temptable-1-1-1.MAI").exists()


def test_a_program_that_lives_and_does_not_answer_says_what_was_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("log", "run"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(control, "UP_S", 1)
    monkeypatch.setenv("SLURM_BOX_PORT", str(ports()["slurmctld"] + 600))  # not the cluster's
    daemon = installation.Daemon("slurmctld", ["sh", "-c", "echo waiting for munge; sleep 60"])
    with pytest.raises(
        slurm_box.ClusterError, match="Connection refused at 127.0.0.1:[0-9]+.*\nwaiting for munge"
    ):
        control._start(daemon, tmp_path)
    programs(tmp_path)["slurmctld"].kill()
