"""Both forms on two ranks, kernels in Triton's interpreter: gradients against autograd's."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from small import interpreter_problem

problem = interpreter_problem()
needs_interpreter = pytest.mark.skipif(bool(problem), reason=problem)
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    """What each of two processes tells, by form."""
    folder = tmp_path_factory.mktemp("ranks")
    here = Path(__file__).parent
    paths = os.pathsep.join([str(here), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": paths}
    if not problem:
        environment["TRITON_INTERPRET"] = "1"
    command = [sys.executable, str(here / "two_ranks.py"), str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in "01"]


def test_the_plain_form_under_ddp_is_the_mean_of_autograds(ranks: list[dict]) -> None:
    """float64 both."""
    assert max(rank["plain"]["off"] for rank in ranks) < 1e-11
    assert ranks[0]["plain"]["sum"] == ranks[1]["plain"]["sum"]


@needs_interpreter
def test_every_gradient_by_kernels_is_autograds(ranks: list[dict]) -> None:
    """fp32 by the kernels against float64; autograd in fp32 is 1e-5 off itself."""
    told = ranks[0]["fp32"]
    assert 0 < told["off"] < 7e-5
    assert told["moved"] < 5e-5  # running statistics


@needs_interpreter
def test_kernels_in_fp16_are_as_near_as_autocast(ranks: list[dict]) -> None:
    told = ranks[1]["fp16"]
    assert 0 < told["kernels"] < 1.2 * told["usual"]


@needs_interpreter
def test_what_is_not_a_number_reaches_the_loss(ranks: list[dict]) -> None:
    """As with PyTorch's ReLU and max pool: who trains must see that a network is lost."""
    assert all(ranks[1]["lost"].values()), ranks[1]["lost"]


@needs_interpreter
def test_another_steps_gradients_are_added(ranks: list[dict]) -> None:
    """None lies in memory that the next step writes to."""
    assert ranks[0]["fp32"]["added"] < 7e-5


@needs_interpreter
def test_kernels_under_ddp_give_equal_gradients_which_are_the_mean(ranks: list[dict]) -> None:
    assert max(rank["kernels"]["off"] for rank in ranks) < 7e-5
    assert ranks[0]["kernels"]["sum"] == ranks[1]["kernels"]["sum"]


@needs_interpreter
def test_ranks_share_gradients_and_statistics_and_ddp_the_last_layers_alone(
    ranks: list[dict],
) -> None:
    """Also gradients of a pass before, which was not shared; and those that autograd makes, of
    images that the kernels do not take. Ranks that began apart have rank 0's weights."""
    told = [rank["shared"] for rank in ranks]
    assert told[0]["left"] == ["fc.weight", "fc.bias"]
    assert told[0]["sums"] == told[1]["sums"]
    assert max(each["off"] for each in told) < 7e-5
    assert min(each["alone"] for each in told) > 0.1  # what a rank has alone is no mean
    assert told[0]["strides"]


@needs_interpreter
@pytest.mark.parametrize("way", ["eval", "first", "last"])
def test_ranks_share_what_trains_where_not_all_of_a_network_does(
    way: str, ranks: list[dict]
) -> None:
    """With statistics that stay, without its first layers, and without the last one."""
    ours, theirs = (rank["shared"]["partly"][way] for rank in ranks)
    assert None not in ours
    assert ours == theirs


@needs_interpreter
def test_a_second_backward_pass_is_refused_with_the_reason(ranks: list[dict]) -> None:
    assert "call backward before the next forward, and once" in ranks[0]["kernels"]["twice"]
