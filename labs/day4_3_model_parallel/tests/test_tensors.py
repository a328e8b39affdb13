"""Tests of lab 4.3: tensor parallelism on real ranks, and recorded runs."""

import of_ranks
import pandas as pd
import pytest

from course.analysis.ranks import on_ranks
from course.runs.run import PROJECT
from labs import day4_3_model_parallel as lab

SOLUTION = PROJECT / "solutions" / "train_parallel.py"
ROUNDING = 5e-6
# What is left out of the solution, what replaces it, and the row that shows it.
MISTAKES = {
    "        distributed.all_reduce(gradient, group=ctx.group)": ("pass", "features"),
    "        distributed.all_reduce(result, group=group)": ("pass", "result"),
    "        if ranks.get_local_rank() > 0:\n            self.fc2.bias = None": (
        "nn.init.ones_(self.fc2.bias)",
        "result",
    ),
}

pytestmark = pytest.mark.slow


def test_only_columns_then_rows_need_one_message() -> None:
    table = lab.compare_mlp_cuts()
    assert table["messages"].tolist() == [1, 2, 2, 2]
    assert table["kib"].idxmin() == "columns, then rows"
    assert (table["error"].iloc[:3] < ROUNDING).all() and table["error"].iloc[3] > 0.1


def test_the_solution_equals_the_full_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(PROJECT / "notebooks")  # as a notebook names it
    table = lab.compare_with_full_mlp("solutions/train_parallel.py")
    assert table.shape == (6, 2) and (table < ROUNDING).all(axis=None)


def test_each_mistake_shows_in_one_row(tmp_path_factory: pytest.TempPathFactory) -> None:
    scripts = []
    for text, (replacement, _) in MISTAKES.items():
        scripts.append(tmp_path_factory.mktemp("wrong") / "train_parallel.py")
        assert SOLUTION.read_text().count(text) == 1
        scripts[-1].write_text(SOLUTION.read_text().replace(text, f"        {replacement}"))
    tables, *_ = on_ranks(of_ranks.compare_each, 2, [*map(str, scripts)])
    for table, (_, row) in zip(map(pd.DataFrame, tables), MISTAKES.values()):
        assert [*table.index[(table > 0.01).any(axis=1)]] == [row]


def test_without_the_sum_training_is_slightly_slower() -> None:
    losses = lab.train_without_sum()
    assert [*losses["shared"]] == pytest.approx([*losses["full"]], rel=1e-5)
    ratio = losses["without_sum"] / losses["full"]
    assert ratio.iloc[0] == pytest.approx(1, rel=1e-6)
    assert losses["without_sum"].is_monotonic_decreasing and ratio.iloc[1:].between(1, 1.05).all()


def test_dtensors_support_linear_layers_and_little_else() -> None:
    table = lab.try_parallelize_module()
    assert table.loc["Linear", "error"] < ROUNDING and table.loc["Linear", "all_reduces"] == 1
    assert table.loc["Conv2d", "message"].startswith("NotImplementedError")
    table = lab.try_convolutions()
    assert [*table.index[table["is_right"]]] == ["images"] and (table["message"] == "").all()
    same_shape = table["shape"] == table["expected"]
    assert [*table.index[same_shape & ~table["is_right"]]] == ["input channels"]


def test_computed_messages_and_shares() -> None:
    gb = lab.communication_volume("coatnet_pico_rw_224", [1, 10])
    assert gb.loc[10, "tensor"] == pytest.approx(10 * gb.loc[1, "tensor"])
    assert gb["data"].nunique() == 1
    whole, half, quarter = (lab.weight_share("vit_tiny_patch16_224", ranks) for ranks in (1, 2, 4))
    assert 1 == whole > half > quarter > 0.5


def test_recorded_runs_are_compared_with_ddp_at_their_batch() -> None:
    table = lab.compare_with_ddp(lab.parallel_runs())
    assert {*table.loc[["ddp-24", "ddp-48"], "of_ddp"]} == {1.0}
    assert not table.index.str.contains("traced").any() and table["of_ddp"].notna().all()
    table = lab.compare_pipelines(lab.parallel_runs())
    assert table.loc["pipe-1f1b-8", "measured"] > table.loc["pipe-1f1b-8", "predicted"] > 0
