"""Tests of schedules, trained pipelines, and cuts."""

from collections.abc import Iterator

import pandas as pd
import pytest
import torch

from course.checks import exercises
from course.checks.compare import Folder
from course.config import rung
from course.runs.run import Run
from labs import pipeline as lab
from labs.pipeline.lab import EXERCISES
from labs.pipeline.pipelines import SCHEDULES
from labs.pipeline.schedules import (
    ideal_step,
    idle_share,
    measured_order,
    measured_step,
    schedule_order,
)
from labs.pipeline.stages import stage_ranges
from labs.tensor_parallel.measurements import parallel_runs

# They depend on the 16-bit hardware of the CPU: make test-formats.
pytestmark = pytest.mark.formats

SMALL = {
    "quick": True,
    "val_steps": 1,
    "device": "cpu",
    "collective_timeout_s": 30,
    **EXERCISES["pipeline_stages"].settings | {"steps": 3, "data": "imagenet"},
}
NORMED = {"model": "resnet18", "image_px": 32}  # with BatchNorm
FOUR = "1f1b on 4"


@pytest.fixture(scope="module")
def trained() -> Iterator[dict[str, Run]]:
    """Train on one process, in every schedule on 2 ranks, on 4, and with BatchNorm."""
    solution = (exercises.SOLUTIONS / "train_parallel.py").read_text()
    text = exercises.render(solution)
    folder = Folder()

    def prepare(name: str, ranks: int, config: str, **settings: object) -> Run:
        return folder.add(name, text, rung(config, **SMALL | settings), ranks)

    runs = {name: prepare(name, 2, "pipeline", pipeline=name, micro_batch=2) for name in SCHEDULES}
    runs["bf16"] = prepare("bf16", 2, "pipeline", micro_batch=2, precision="bf16")
    runs["normed"] = prepare("normed", 2, "pipeline", micro_batch=2, **NORMED)
    runs[FOUR] = prepare(FOUR, 4, "pipeline", micro_batch=2, stage_split="weights")
    runs["alone"] = prepare("alone", 1, "large")
    runs["alone, normed"] = prepare("alone, normed", 1, "large", **NORMED)
    folder.work()
    yield runs
    folder.stop()


def losses(run: Run) -> list[float]:
    return run.steps["loss"].astype(float).tolist()


@pytest.mark.slow
def test_every_schedule_trains_like_one_process(trained: dict[str, Run]) -> None:
    alone = losses(trained["alone"])
    for name in (*SCHEDULES, FOUR):
        assert losses(trained[name]) == pytest.approx(alone, rel=1e-4)
        assert trained[name].record.val_images == 8  # those that make a complete batch
    assert losses(trained["bf16"]) == pytest.approx(alone, rel=0.05)
    # BatchNorm normalises micro-batches.
    assert losses(trained["normed"]) != pytest.approx(losses(trained["alone, normed"]), rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*SCHEDULES, FOUR])
def test_the_measured_order_is_that_of_the_schedule(trained: dict[str, Run], name: str) -> None:
    run = trained[name]
    order = schedule_order(run.config.pipeline, run.record.gpus, 4)
    assert measured_order(run) == order
    assert_is_feasible(measured_step(run), tolerance_ms=1)


@pytest.mark.slow
def test_idle_shares_are_predicted_and_measured(trained: dict[str, Run]) -> None:
    table = lab.compare_pipelines({name: trained[name] for name in (*SCHEDULES, FOUR, "alone")})
    assert table.loc["gpipe", "bubble"] == pytest.approx(lab.bubble_share(2, 4))
    assert table.loc[FOUR, "bubble"] == pytest.approx(lab.bubble_share(4, 4))
    assert table["idle"].between(0, 1).all() and "alone" not in table.index
    passes = trained["zero_bubble"].evidence().actions["2"]
    assert all(row[5] > 0 for row in passes)  # small runs have a CPU limit: coarse process clocks
    alt = lab.plot_run(trained["zero_bubble"]).alt
    assert "zero_bubble, measured" in alt and "ideal" in alt
    with pytest.raises(ValueError, match="no pipeline stages. Launch it with pipeline='1f1b'"):
        measured_step(trained["alone"])


def assert_is_feasible(table: pd.DataFrame, tolerance_ms: float) -> None:
    """Check that a rank runs one pass at a time, and that forward passes wait for their input."""
    for _, rows in table.groupby("rank"):
        assert (rows["begin_ms"].iloc[1:].values >= rows["end_ms"].values[:-1] - tolerance_ms).all()
    forward = table[table["kind"] == "F"].pivot(index="micro_batch", columns="stage")
    for stage in forward["begin_ms"].columns[1:]:
        begins, ends = forward["begin_ms"][stage], forward["end_ms"][stage - 1]
        assert (begins >= ends - tolerance_ms).all()


@pytest.mark.parametrize(("ranks", "micro_batches"), [(2, 8), (3, 6)])
def test_ideal_steps(ranks: int, micro_batches: int) -> None:
    shares = {}
    for name, (_, stages_per_rank) in SCHEDULES.items():
        table = ideal_step(name, ranks, micro_batches)
        passes = 3 if name == "zero_bubble" else 2
        assert len(table) == ranks * stages_per_rank * micro_batches * passes
        assert_is_feasible(table, tolerance_ms=1e-9)
        shares[name] = idle_share(table)
    expected = pytest.approx(lab.bubble_share(ranks, micro_batches))
    assert shares["gpipe"] == expected and shares["1f1b"] == expected
    # With two stages a rank, each waits for half as long (Narayanan et al. 2021, section 2.2).
    assert shares["interleaved"] == pytest.approx((ranks - 1) / (2 * micro_batches + ranks - 1))
    assert 0 < shares["zero_bubble"] < shares["interleaved"]


def test_orders() -> None:
    orders = [
        " ".join(f"{pass_.kind}{pass_.micro_batch}" for pass_ in passes)
        for passes in schedule_order("1f1b", 2, 4)
    ]
    assert orders == ["F0 F1 B0 F2 B1 F3 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3"]
    with pytest.raises(ValueError, match="choose gpipe or 1f1b"):
        schedule_order("2f2b", 2, 2)
    with pytest.raises(ValueError, match="micro_batches=3: interleaved needs a multiple of 2"):
        schedule_order("interleaved", 2, 3)
    picture = lab.plot_ideal(2, 2, "gpipe")
    assert "gpipe, ideal: 33% of the ranks' time idle" in picture.alt


def test_pieces_are_measured_and_cut() -> None:
    table = lab.measure_pieces("coatnet_pico_rw_224", image_px=32, images=1)
    assert len(table) == 14 and (table["ms"] > 0).all()
    assert round(table["weights_m"].sum(), 1) == 10.3  # with 16 classes
    assert "weights, % of all" in lab.plot_cuts(table, {"weights": "10"}).alt
    table = pd.DataFrame({"weights_m": [0, 1, 1, 1, 9, 0.0], "gflop": [1, 4, 4, 4, 4, 1.0]})
    table["ms"] = [5, 1, 1, 1, 1, 1.0]
    assert lab.balanced_splits(table) == {"weights": "3", "GFLOP": "2", "your times": "1"}
    assert stage_ranges(table, "1,3") == [(0, 2), (2, 4), (4, 6)]


def test_pieces_are_measured_with_the_threads_of_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    threads, used = torch.get_num_threads(), []
    monkeypatch.setattr("labs.pipeline.stages.core_count", lambda: 16)
    monkeypatch.setattr(torch, "set_num_threads", used.append)
    lab.measure_pieces("coatnet_pico_rw_224", image_px=32, images=1)
    assert used == [8, threads]


def test_recorded_pipelines_are_compared() -> None:
    table = lab.compare_pipelines(parallel_runs())
    assert table.loc["pipe-1f1b-8", "idle"] > table.loc["pipe-1f1b-8", "bubble"] > 0
