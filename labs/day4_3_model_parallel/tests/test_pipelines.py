"""Pipelines that were trained: any order, any number of stages trains alike, and is seen."""

from pathlib import Path

import numpy as np
import pytest
from check_helpers import ranks_training, view_of
from job_helpers import prepared, train_together

from course.config import rung
from course.runs.run import Run
from course.training.ranks.pipelines import SCHEDULES
from labs import day4_3_model_parallel as parallel
from labs.day4_3_model_parallel import timelines
from labs.day4_3_model_parallel.stage_checks import CHECKS

pytestmark = pytest.mark.slow
SMALL = {
    "quick": True,
    "val_steps": 1,
    "device": "cpu",
    "collective_timeout_s": 30,
    **CHECKS["day4.stages"].settings | {"steps": 3, "data": "imagenet"},
}
NORMED = {"model": "resnet18", "image_px": 32}  # with BatchNorm
FOUR = "1f1b on 4"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, small_set: Path) -> dict[str, Run]:
    """A short training each: alone, in every order on 2 ranks, on 4, with BatchNorm."""
    root = tmp_path_factory.mktemp("piped")

    def made(name: str, gpus: int, config: str, **own: object) -> Run:
        values = SMALL | {"data_root": str(small_set)} | own
        script = "solutions/train_parallel.py"
        return prepared(root / name, view_of(33), rung(config, **values), gpus=gpus, script=script)

    runs = {name: made(name, 2, "pipeline", pipeline=name, micro_batch=2) for name in SCHEDULES}
    runs["bf16"] = made("bf16", 2, "pipeline", micro_batch=2, precision="bf16")
    runs["cut"] = made("cut", 2, "pipeline", micro_batch=2, cut="1")
    runs["normed"] = made("normed", 2, "pipeline", micro_batch=2, **NORMED)
    four = {FOUR: made("four", 4, "pipeline", micro_batch=2, cut="weights")}
    alone = {"alone": made("alone", 1, "large"), "alone, normed": made("n", 1, "large", **NORMED)}
    with ranks_training([*runs.values()], 2, 21_600), ranks_training([*four.values()], 4, 21_700):
        train_together(alone.values(), CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1")
    return runs | four | alone


def apart(one: Run, other: Run) -> float:
    losses = (run.steps["loss"].to_numpy(float) for run in (one, other))
    return float(np.max(np.abs(np.divide(*losses) - 1)))


@pytest.mark.parametrize("name", [*SCHEDULES, "cut", FOUR])
def test_any_order_trains_as_one_process(trained: dict[str, Run], name: str) -> None:
    assert apart(trained[name], trained["alone"]) < 1e-4
    assert apart(trained["bf16"], trained["alone"]) < 0.05
    assert trained[name].record.val_images == 8  # of 15 those that make a whole batch


def test_batchnorm_sees_micro_batches(trained: dict[str, Run]) -> None:
    assert apart(trained["normed"], trained["alone, normed"]) > 1e-3


@pytest.mark.parametrize("name", [*SCHEDULES, FOUR])
def test_the_order_is_the_one_that_was_asked_for(trained: dict[str, Run], name: str) -> None:
    run = trained[name]
    assert timelines.micro_batches_of(run) == 4
    due = parallel.order(run.config.pipeline, run.record.gpus, 4)
    assert parallel.order_of(run) == due
    table = parallel.timeline(run)
    assert len(table) == sum(map(len, due)) and table["begin_ms"].min() == 0
    for _, of_rank in table.groupby("rank"):  # one pass at a time
        assert (of_rank["begin_ms"].to_numpy()[1:] >= of_rank["end_ms"].to_numpy()[:-1] - 0.1).all()
    sent = table[table["what"] == "F"].set_index(["stage", "micro_batch"])
    for stage in sent.index.levels[0][1:]:  # nothing begins before it can
        assert (sent.loc[stage, "begin_ms"] > sent.loc[stage - 1, "end_ms"] - 1).all()


def test_predicted_and_replayed(trained: dict[str, Run]) -> None:
    table = parallel.bubbles({name: trained[name] for name in (*SCHEDULES, FOUR)})
    assert table.loc["gpipe", "predicted"] == pytest.approx(parallel.bubble(2, 4))
    assert table.loc[FOUR, "predicted"] == pytest.approx(parallel.bubble(4, 4))
    assert (table["measured"].between(0, 1) & table["with_own"].between(0, 1)).all()
    assert table["in_flight"].to_dict() == {
        "gpipe": 4,
        "1f1b": 2,
        "interleaved": 2.5,
        "zero_bubble": 2,
        FOUR: 4,
    }
    run = trained["gpipe"]
    work, ideal = (
        each["end_ms"] - each["begin_ms"]
        for each in (parallel.timeline(run), parallel.ideal_of(run))
    )
    assert work.sum() == pytest.approx(ideal.sum())


def test_a_picture_of_a_run(trained: dict[str, Run]) -> None:
    picture = parallel.plot_run(trained["zero_bubble"])
    assert "zero_bubble, measured" in picture.alt and "ideal" in picture.alt
    with pytest.raises(ValueError, match="has no stages: launch with pipeline='1f1b'"):
        parallel.timeline(trained["alone"])


def test_traps_and_their_ways_out(trained: dict[str, Run]) -> None:  # a server forks ranks now
    table = parallel.traps()
    assert "contiguous" in table.loc["turned gradients, sent as they are", "rank 0"]
    assert "Timed out waiting" in table.loc["turned gradients, sent as they are", "rank 1"]
    assert "Mismatch in shape" in table.loc["7 images in micro-batches of 2", "rank 0"]
    assert table.loc["7 images in micro-batches of 2", "rank 1"] == ""  # it took what was there
    for name in ("turned gradients, made contiguous", "zero bubble in a V"):
        assert (table.loc[name] == "").all()
    assert table.attrs["torch"].count(".") == 2
