"""A DDP script that torchrun starts, and a rank that is killed."""

import re

import pytest

from labs.day2_2_data_parallel.terminal import run_command

TORCHRUN = "torchrun --nproc-per-node 2 labs/day2_2_data_parallel/by_hand.py"


@pytest.mark.slow
def test_a_killed_rank_is_named_and_ends_the_other(capfd: pytest.CaptureFixture) -> None:
    run_command(TORCHRUN, send="KILL")
    output = capfd.readouterr().out
    weights = re.findall(r"rank (\d), step (\d): .* weights ([\d.]+)", output)
    assert len({(step, value) for _, step, value in weights}) == len({s for _, s, _ in weights})
    assert re.search(r"Root Cause[^\[]*\[0\]:[^\[]*rank +: 1 .*[^\[]*exitcode +: -9", output)
    assert "SIGKILL for rank 1" in output and "ended with exit code 1" in output
    assert 'File "' not in output  # no frames of tracebacks
