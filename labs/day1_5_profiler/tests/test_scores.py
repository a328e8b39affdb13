"""The rules judge kernels right whose machine code or counters are known."""

import pandas as pd
import pytest
from trace_files import CONV

from labs.day1_5_profiler import verdicts
from labs.day1_5_profiler.verdicts import score


def test_precision_and_recall_on_labelled_kernels() -> None:
    total = score().set_index("part")
    for part in ("development", "held-out"):
        row = total.loc[part]
        assert row["kernels"] > 200 and row["used"] > 100
        assert row["precision"] >= 0.99 and row["recall"] >= 0.98
        assert row["unknown"] <= 0.1 * row["kernels"]
    names = ["ampere_sgemm_128x64_nn", "Kernel2", "volta_sgemm_128x64_nn"]
    conv = CONV.replace("tilesize", "warpgroupsize1x1x1_")
    yours = pd.DataFrame({"kernel": [conv, *names], "truth": ["used"] * 3 + ["not"], "part": ""})
    (row,) = score(yours).itertuples()
    assert (row.kernels, row.used, row.found, row.unknown) == (4, 3, 1, 1)
    assert (row.precision, row.recall) == pytest.approx((1, 1 / 3))


# Triton compiled these during the step, so no library has their code; too busy for a "not".
UNSETTLED = {
    f"triton_poi_fused__native_batch_norm_legit_functional_relu_{number}" for number in (5, 11, 27)
}


def test_every_large_kernel_of_the_h100_is_judged_right() -> None:
    with pytest.raises(ValueError, match="research.tensor_cores OUT.jsonl"):
        verdicts.judge_kernels("nvidia-h200")
    judged = verdicts.judge_kernels("nvidia-h100")
    large = judged[judged["share"] > verdicts.LARGE]
    unclear = large[large["result"] == "unclear"]
    assert set(unclear["kernel"]) == UNSETTLED and unclear["tensor_active"].max() < 0.006
    assert large.loc[large["result"] != "right", "kernel"].isin(UNSETTLED).all()
    assert {"device", "tf32", "amp", "channels_last", "compile"} <= set(large["setting"])
    table = verdicts.summarize_verdicts(judged)
    assert (table["name_share"] - table["true_share"]).abs().max() < 0.01
