"""Layers that ranks share out: which cuts are right, and how a wrong one is seen."""

import of_ranks
import pandas as pd
import pytest
from job_helpers import warm_up

from course.runs.run import PROJECT
from labs import day4_3_model_parallel as parallel
from labs.day4_2_fsdp.processes import on_ranks

SOLUTION = PROJECT / "solutions" / "train_parallel.py"
ROUNDING = 5e-6  # of sums, in another order on another processor
MISTAKES = {  # what is left out of the solution, and the rows that show it
    "        distributed.all_reduce(gradient, group=ctx.group)": ["features"],
    "        distributed.all_reduce(result, group=group)": ["result"],
    "        if ranks.get_local_rank() > 0:\n            self.fc2.bias = None\n": ["result"],
}


pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def forked(own_turns: None) -> None:
    """Ranks import PyTorch once."""
    warm_up()


def test_columns_then_rows_need_one_message_and_gelu_comes_behind_a_sum() -> None:
    cuts = parallel.cuts()
    assert cuts["messages"].tolist() == [1, 2, 2, 2]
    assert cuts["messages"].idxmin() == cuts["kib"].idxmin() == "columns, then rows"
    assert (cuts["error"].iloc[:3] < ROUNDING).all() and cuts["error"].iloc[3] > 0.1


def test_the_solution_is_the_whole_layer_in_result_and_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(PROJECT / "notebooks")  # as a notebook names it
    found = parallel.compared("solutions/train_parallel.py")
    assert found.shape == (6, 2) and (found < ROUNDING).all(axis=None)


@pytest.fixture(scope="module")
def of_wrong(own_turns: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, pd.DataFrame]:
    """What `compared` says of the solution without each of these, of small networks."""
    warm_up()
    scripts = [tmp_path_factory.mktemp("wrong") / "train_parallel.py" for _ in MISTAKES]
    for script, left_out in zip(scripts, MISTAKES):
        text = SOLUTION.read_text()
        if "bias" in left_out:  # it starts at zero: what both ranks add is seen where it is not
            text = text.replace(left_out, "        nn.init.ones_(self.fc2.bias)\n")
        else:
            assert text.count(left_out) == 1
            text = text.replace(left_out, "        pass")
        script.write_text(text)
    found, *_ = on_ranks(of_ranks.compare_each, 2, [*map(str, scripts)])
    return dict(zip(MISTAKES, map(pd.DataFrame, found)))


@pytest.mark.parametrize("left_out", MISTAKES)
def test_what_is_left_out_shows_in_its_rows_alone(
    left_out: str, of_wrong: dict[str, pd.DataFrame]
) -> None:
    found = of_wrong[left_out]
    off = found.index[(found > 0.01).any(axis=1)]
    assert [*off] == MISTAKES[left_out]


def test_a_forgotten_sum_learns_a_little_slower() -> None:
    found = parallel.forgotten()
    assert (found["shared"] / found["whole"] - 1).abs().max() < 1e-5
    assert found["without"].iloc[0] == pytest.approx(found["whole"].iloc[0], rel=1e-6)
    assert found["without"].is_monotonic_decreasing
    assert (found["without"].iloc[1:] > found["whole"].iloc[1:]).all()
    assert found["without"].iloc[-1] / found["whole"].iloc[-1] < 1.05


def test_what_pytorch_takes_and_refuses() -> None:
    found = parallel.parallelized()
    assert found.loc["Linear", "error"] < ROUNDING and found.loc["Linear", "all_reduces"] == 1
    assert found.loc["Conv2d", "said"].startswith("NotImplementedError")


def test_a_convolution_of_dtensors_is_wrong_without_a_word() -> None:
    found = parallel.convolved()
    assert [*found.index[found["is_right"]]] == ["images"]
    assert (found["said"] == "").all()
    same = found["shape"] == found["due"]
    assert [*found.index[same & ~found["is_right"]]] == ["input channels"]


def test_what_is_sent_and_kept() -> None:
    sent = parallel.sent("coatnet_pico_rw_224", [1, 10])
    assert sent.loc[10, "tensor"] == pytest.approx(10 * sent.loc[1, "tensor"])
    assert sent["data"].nunique() == 1
    assert parallel.share("vit_tiny_patch16_224", 1) == 1
    assert (
        0.5 < parallel.share("vit_tiny_patch16_224", 4) < parallel.share("vit_tiny_patch16_224", 2)
    )


def test_the_picture_of_an_mlp_has_both_ranks() -> None:
    words = [each.get_text() for each in parallel.plot_mlp().axes[0].texts]
    assert {"rank 0", "rank 1", "A", "B", "x"} <= {*words}


def test_recorded_ways_stand_beside_ddp_at_their_batch() -> None:
    table = parallel.ways(parallel.recorded())
    assert {*table.loc[["ddp-24", "ddp-48"], "of_ddp"]} == {1.0}
    assert not any("traced" in name for name in table.index)
    assert table["of_ddp"].notna().all() and (table["least_gib"] <= table["peak_gib"]).all()


def test_of_a_machine_without_them_it_is_said(capsys: pytest.CaptureFixture) -> None:
    assert parallel.ways(parallel.recorded("nvidia-h200")).empty
    assert "No network shared out is recorded for nvidia-h200 yet" in capsys.readouterr().out
