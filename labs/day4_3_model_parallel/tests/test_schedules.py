"""Orders of a pipeline: what they wait by themselves, what they hold, what they never do."""

import pandas as pd
import pytest
from cases import for_all

from course.training.ranks.pipelines import SCHEDULES
from labs import day4_3_model_parallel as parallel
from labs.day4_3_model_parallel import balance, schedules
from labs.day4_3_model_parallel.schedules import Pass

SIZES = [(2, 2), (2, 8), (4, 4), (4, 8), (3, 6)]
sizes = pytest.mark.parametrize(("ranks", "micro_batches"), SIZES)


@sizes
def test_bubbles_are_those_of_the_formulas(ranks: int, micro_batches: int) -> None:
    found = {name: parallel.idle(parallel.ideal(name, ranks, micro_batches)) for name in SCHEDULES}
    due = parallel.bubble(ranks, micro_batches)
    assert found["gpipe"] == pytest.approx(due) and found["1f1b"] == pytest.approx(due)
    # Two stages a rank: each waits for half as long (Narayanan et al. 2021, section 2.2).
    halved = (ranks - 1) / (2 * micro_batches + ranks - 1)
    assert found["interleaved"] == pytest.approx(halved)
    assert 0 < found["zero_bubble"] < found["interleaved"]


@sizes
@for_all("name", SCHEDULES)
def test_every_pass_is_there_once_and_in_time(name: str, ranks: int, micro_batches: int) -> None:
    table = parallel.ideal(name, ranks, micro_batches)
    stages = ranks * SCHEDULES[name][1]
    assert len(table) == stages * micro_batches * (3 if name == "zero_bubble" else 2)
    assert not table.duplicated(["what", "stage", "micro_batch"]).any()
    assert (table["rank"] == table["stage"] % ranks).all()
    at = table.set_index(["what", "stage", "micro_batch"])
    back = "I" if name == "zero_bubble" else "B"
    for number in range(micro_batches):
        for stage in range(1, stages):
            before, after = (at.loc[("F", each, number)] for each in (stage - 1, stage))
            assert before["end_ms"] <= after["begin_ms"] + 1e-9
            before, after = (at.loc[(back, each, number)] for each in (stage, stage - 1))
            assert before["end_ms"] <= after["begin_ms"] + 1e-9
    for _, of_rank in table.groupby("rank"):
        assert (
            of_rank["begin_ms"].to_numpy()[1:] >= of_rank["end_ms"].to_numpy()[:-1] - 1e-9
        ).all()


def test_what_ranks_hold() -> None:
    assert parallel.in_flight("gpipe", 4, 8) == [8] * 4
    assert parallel.in_flight("1f1b", 4, 8) == [4, 3, 2, 1]
    assert parallel.in_flight("1f1b", 4, 2) == [2, 2, 2, 1]
    assert parallel.in_flight("interleaved", 4, 8)[0] == 5.5


def test_orders_in_letters() -> None:
    def said(passes: list[Pass]) -> str:
        return " ".join(f"{each.what}{each.micro_batch}" for each in passes)

    first, last = parallel.order("1f1b", 2, 4)
    assert said(first) == "F0 F1 B0 F2 B1 F3 B2 B3"
    assert said(last) == "F0 B0 F1 B1 F2 B2 F3 B3"
    assert said(parallel.order("gpipe", 2, 2)[0]) == "F0 F1 B0 B1"


def test_what_is_no_order_is_refused() -> None:
    with pytest.raises(ValueError, match="choose gpipe or 1f1b"):
        parallel.order("2f2b", 2, 2)
    with pytest.raises(ValueError, match="in rounds of 2: 3 is no multiple"):
        parallel.order("interleaved", 2, 3)
    crossed = [[Pass("B", 0, 0), Pass("F", 0, 0)], [Pass("F", 1, 0), Pass("B", 1, 0)]]
    with pytest.raises(ValueError, match="each rank waits for another"):
        parallel.simulate(crossed, lambda one: 1.0)


def test_a_slow_stage_makes_the_others_wait() -> None:
    asked = parallel.order("1f1b", 2, 4)
    even, uneven = (
        parallel.simulate(asked, lambda one, slow=slow: slow if one.stage == 0 else 1.0)
        for slow in (1.0, 3.0)
    )
    assert parallel.idle(uneven) > parallel.idle(even)
    waits = uneven[uneven["rank"] == 0]
    assert (waits["end_ms"] - waits["begin_ms"]).sum() > 0.85 * uneven["end_ms"].max()


def test_cuts_by_columns_of_a_table() -> None:
    table = pd.DataFrame(
        {
            "piece": ["front", "0", "1", "2", "3", "back"],
            "weights_m": [0, 1, 1, 1, 9, 0.0],
            "gflop": [1, 4, 4, 4, 4, 1.0],
            "ms": [9, 3, 3, 3, 3, 1.0],
        }
    )
    cuts = {name: parallel.cut_by(table, name) for name in ("weights_m", "gflop", "ms")}
    assert cuts == {"weights_m": "3", "gflop": "2", "ms": "1"}
    assert balance.stages_of(table, "1,3") == [(0, 2), (2, 4), (4, 6)]


def test_pieces_of_a_network_are_timed() -> None:
    table = parallel.pieces("coatnet_pico_rw_224", image_px=32, images=1)
    assert len(table) == 14 and (table["ms"] > 0).all()
    assert round(table["weights_m"].sum(), 1) == 10.3  # with 16 classes
    picture = parallel.plot_cuts(table, {"weights": "10", "GFLOP": "5"})
    assert "weights, % of all" in picture.alt and "GFLOP" in picture.alt


def test_pictures_say_what_is_idle() -> None:
    tables = {name: parallel.ideal(name, 2, 2) for name in ("gpipe", "zero_bubble")}
    picture = parallel.plot_steps(tables)
    assert "gpipe: 33% of the ranks' time idle" in picture.alt
    assert "rank 1: 0, 1, 0, 1" in picture.alt
    assert schedules.idle(tables["zero_bubble"]) < 0.1
