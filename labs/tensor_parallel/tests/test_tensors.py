"""Tests of tensor parallelism on real ranks, and recorded runs."""

import pytest

from labs import tensor_parallel as lab

ROUNDING = 5e-6
pytestmark = pytest.mark.slow


def test_only_columns_then_rows_need_one_message() -> None:
    table = lab.compare_mlp_cuts()
    assert table["messages"].tolist() == [1, 2, 2, 2]
    assert table["kib"].idxmin() == "columns, then rows"
    assert (table["error"].iloc[:3] < ROUNDING).all() and table["error"].iloc[3] > 0.1


def test_without_the_sum_training_is_slightly_slower() -> None:
    losses = lab.train_without_sum()
    assert [*losses["shared"]] == pytest.approx([*losses["full"]], rel=1e-5)
    ratio = losses["without_sum"] / losses["full"]
    assert ratio.iloc[0] == pytest.approx(1, rel=1e-6)
    assert losses["without_sum"].is_monotonic_decreasing and ratio.iloc[1:].between(1, 1.05).all()


def test_computed_messages_and_shares() -> None:
    gb = lab.communication_volume("coatnet_pico_rw_224", [1, 10])
    shared = gb["tensor_parallel"]
    assert shared[10] == pytest.approx(10 * shared[1]) and gb["data_parallel"].nunique() == 1
    whole, half, quarter = (lab.weight_share("vit_tiny_patch16_224", ranks) for ranks in (1, 2, 4))
    assert 1 == whole > half > quarter > 0.5


def test_recorded_runs_are_compared_with_ddp_at_their_batch() -> None:
    table = lab.compare_with_ddp(lab.parallel_runs())
    assert {*table.loc[["ddp-24", "ddp-48"], "of_ddp"]} == {1.0}
    assert not table.index.str.contains("traced").any() and table["of_ddp"].notna().all()


def test_splitting_tokens_sends_the_same_bytes_and_saves_fewer() -> None:
    table = lab.compare_sequence_parallel()
    assert table["all_reduce"].tolist() == [1, 0]
    assert table["all_gather"].tolist() == table["reduce_scatter"].tolist() == [0, 1]
    assert table["sent_kib"].nunique() == 1 and table["saved_kib"].is_monotonic_decreasing
    assert (table["error"] < ROUNDING).all()


def test_strips_need_their_neighbours_rows() -> None:
    table = lab.compare_halos()
    assert table["wrong_rows"].tolist() == [6, 0]  # two at each of three borders
    assert "irecv" in lab.exchange_source()
    shares = lab.halo_shares((224, 1024), ranks=8)
    assert shares.loc[32, "1024 px"] == 2 / 4 and shares["224 px"].isna().sum() == 1
