"""A DDP script that torchrun starts, and a rank that is killed."""

import re

import pytest

from labs.day2_2_data_parallel.terminal import run_command

TORCHRUN = "torchrun --standalone --nproc-per-node 2 labs/day2_2_data_parallel/by_hand.py"


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


def test_a_command_that_starts_no_rank_ends_with_its_exit_code(
    capsys: pytest.CaptureFixture,
) -> None:
    run_command("echo no such program; exit 127", send="STOP")
    assert capsys.readouterr().out == (
        "no such program\n--- the command ended with exit code 127\n"
    )
