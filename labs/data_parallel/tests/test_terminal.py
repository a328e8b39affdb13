"""A DDP script that torchrun starts, and a rank that is killed or frozen."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from course.runs import PROJECT
from labs.data_parallel import terminal
from labs.data_parallel.terminal import run_command

TORCHRUN = "torchrun --nproc-per-node 2 labs/data_parallel/by_hand.py"


@pytest.mark.slow
def test_a_killed_rank_is_named_and_ends_the_other(capfd: pytest.CaptureFixture) -> None:
    run_command(TORCHRUN, send="KILL")
    output = capfd.readouterr().out
    weights = re.findall(r"rank (\d), step (\d): .* weights ([\d.]+)", output)
    assert {rank for rank, _, _ in weights} == {"0", "1"}
    assert len({(step, value) for _, step, value in weights}) == len({s for _, s, _ in weights})
    assert re.search(r"Root Cause[^\[]*\[0\]:[^\[]*rank +: 1 .*[^\[]*exitcode +: -9", output)
    assert "SIGKILL for rank 1" in output and "ended with exit code 1" in output
    assert 'File "' not in output  # no frames of tracebacks


# A rank that lists the keys in the stores of torchrun, which any user of this machine can reach.
RANK = """
import os, psutil
from torch.distributed import TCPStore
for port in psutil.Process(os.getppid()).net_connections("tcp"):
    if port.status == "LISTEN":
        store = TCPStore("localhost", port.laddr.port, is_master=False, wait_for_workers=False)
        print(store.list_keys(), flush=True)
print("listed", flush=True)
"""


def test_no_other_user_can_write_what_torchrun_unpickles(
    tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    """Its rendezvous is a pickle, so anyone who can write it runs code as this user."""
    (tmp_path / "rank.py").write_text(RANK)
    run_command(TORCHRUN.replace("labs/data_parallel/by_hand.py", str(tmp_path / "rank.py")))
    output = capfd.readouterr().out
    assert output.count("listed") == 2 and "torch.rendezvous" not in output
    assert "master_addr" not in output  # a warning about an option that the command does not have
    notebooks = [json.loads(x.read_text()) for x in (PROJECT / "notebooks").glob("*.ipynb")]
    code = [x["source"] for book in notebooks for x in book["cells"] if x["cell_type"] == "code"]
    assert not [line for source in code for line in source if "--standalone" in line]


@pytest.mark.slow
@pytest.mark.parametrize("is_allowed", [True, False])
def test_stacks_show_which_rank_waits(
    is_allowed: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    """With py-spy both ranks' stacks; without it, that of the rank that waits."""
    tool = shutil.which("py-spy")
    if is_allowed and not (tool and _may_read(tool)):
        pytest.skip("py-spy is missing, or not allowed to read a process here")
    monkeypatch.setattr(terminal.shutil, "which", lambda *_, **__: tool if is_allowed else "false")
    run_command(TORCHRUN, send="STOP")
    output = capfd.readouterr().out
    assert "backward" in output and re.search(r"Root Cause[^\[]*\[0\]:[^\[]*rank +: 0 ", output)
    if is_allowed:
        waiting, frozen = re.findall(r"--- py-spy dump .*\n(?:(?!---).*\n)+", output)
        assert "(rank 0)" in waiting and "backward" in waiting
        assert "(rank 1)" in frozen and "by_hand.py" in frozen and "backward" not in frozen
    else:
        assert "py-spy can't read" in output and "faulthandler" in output
        assert re.search(r'File ".*by_hand.py", line \d+ in <module>', output)


def _may_read(tool: str) -> bool:
    """Return whether py-spy may read a process that it did not start, as in the lab."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        dump = [tool, "dump", "--nonblocking", "--pid", str(process.pid)]
        return not subprocess.run(dump, capture_output=True, timeout=30).returncode


def test_a_command_that_starts_no_rank_ends_with_its_exit_code(
    capsys: pytest.CaptureFixture,
) -> None:
    run_command("echo no such program; exit 127", send="STOP")
    assert capsys.readouterr().out == (
        "no such program\n--- the command ended with exit code 127\n"
    )
