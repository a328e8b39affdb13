"""Both forms on two ranks, kernels in Triton's interpreter: gradients against autograd's."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from small import interpreter_problem, network, rounding_bound

problem = interpreter_problem()
needs_interpreter = pytest.mark.skipif(bool(problem), reason=problem)
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    """Run two processes; return their reports by form."""
    folder = tmp_path_factory.mktemp("ranks")
    here = Path(__file__).parent
    paths = os.pathsep.join([str(here), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": paths}
    if not problem:
        environment["TRITON_INTERPRET"] = "1"
    command = [sys.executable, str(here / "two_ranks.py"), str(folder)]
    process = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in "01"]


def test_the_plain_form_under_ddp_is_the_mean_of_autograds(ranks: list[dict]) -> None:
    """Compare float64 with float64."""
    assert max(rank["plain"]["off"] for rank in ranks) < 1e-11
    assert ranks[0]["plain"]["sum"] == ranks[1]["plain"]["sum"]


@needs_interpreter
def test_every_gradient_by_kernels_is_autograds(ranks: list[dict]) -> None:
    """The kernels compute in fp32, autograd in float64; autograd in fp32 is 1e-5 off."""
    report = ranks[0]["fp32"]
    assert 0 < report["off"] < 7e-5
    assert report["moved"] < 5e-5  # running statistics


@needs_interpreter
def test_kernels_in_fp16_are_as_near_to_float64_as_roundings_allow(ranks: list[dict]) -> None:
    """Autocast keeps the same bound; which of both is nearer depends on the processor."""
    report, bound = ranks[1]["fp16"], rounding_bound(network(), torch.float16)
    assert 0 < report["kernels"] < bound and 0 < report["usual"] < bound


@needs_interpreter
def test_nan_reaches_the_loss(ranks: list[dict]) -> None:
    """As with PyTorch's ReLU and max pool: a diverged network must be visible."""
    assert all(ranks[1]["nan"].values()), ranks[1]["nan"]


@needs_interpreter
def test_gradients_of_a_second_step_are_added(ranks: list[dict]) -> None:
    """Gradients must not share memory that the next step writes to."""
    assert ranks[0]["fp32"]["added"] < 7e-5


@needs_interpreter
def test_kernels_under_ddp_give_equal_gradients_which_are_the_mean(ranks: list[dict]) -> None:
    assert max(rank["kernels"]["off"] for rank in ranks) < 7e-5
    assert ranks[0]["kernels"]["sum"] == ranks[1]["kernels"]["sum"]


@needs_interpreter
def test_ranks_share_gradients_and_statistics_and_ddp_only_the_last_layer(
    ranks: list[dict],
) -> None:
    """This includes gradients of an earlier pass under no_sync, and gradients that autograd
    computes for images that the kernels do not support. All ranks start with rank 0's weights."""
    reports = [rank["shared"] for rank in ranks]
    assert reports[0]["by_ddp"] == ["fc.weight", "fc.bias"]
    assert reports[0]["sums"] == reports[1]["sums"]
    assert max(report["off"] for report in reports) < 7e-5
    assert min(report["unsynced"] for report in reports) > 0.1  # not the mean
    assert reports[0]["strides"]


@needs_interpreter
def test_a_communication_hook_sends_each_gradient_once(ranks: list[dict]) -> None:
    """Bucket 0 is DDP's. Without broadcast_buffers, each rank keeps its statistics and counter."""
    reports = [rank["hook"] for rank in ranks]
    assert max(report["off"] for report in reports) < 7e-5
    assert [report["buckets"] for report in reports] == [[0, 2, 3, 4, 5, 6, 0, 7]] * 2
    assert reports[0]["sums"] == reports[1]["sums"]
    assert reports[0]["statistics"] != reports[1]["statistics"]
    assert reports[0]["batches"] + 1 == reports[1]["batches"]


@needs_interpreter
def test_fsdps_gradients_by_kernels_are_the_mean_of_autograds(ranks: list[dict]) -> None:
    assert max(rank["fsdp"] for rank in ranks) < 7e-5


@needs_interpreter
@pytest.mark.parametrize("part", ["eval", "first", "last"])
def test_ranks_share_gradients_of_a_partly_frozen_network(part: str, ranks: list[dict]) -> None:
    """With frozen statistics, without its first layers, and without the last one."""
    ours, theirs = (rank["shared"]["partly"][part] for rank in ranks)
    assert ours == theirs


@needs_interpreter
def test_a_second_backward_pass_is_refused_with_the_reason(ranks: list[dict]) -> None:
    assert "call backward before the next forward, and once" in ranks[0]["kernels"]["twice"]
