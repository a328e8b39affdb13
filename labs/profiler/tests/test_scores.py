"""Names of kernels give the right verdict, where labels, counters or machine code are known."""

import numpy as np
import pandas as pd
import pytest

from course.runs.recordings import trace_folder
from trainspeed.tensor_cores import counters
from trainspeed.tensor_cores.rules import NOT, UNKNOWN, USED, classify

LARGE = 0.005  # of a step: a kernel with a larger share must be judged right
# With a share of busy cycles up to NONE a kernel has no product on Tensor Cores, and from SURE on
# it has. Between them it is unclear: on an H100 a pointwise GELU kept the pipe busy for 12 % of
# the cycles, and the product of two small matrices for 1 %.
NONE, SURE = 0.005, 0.15
# Triton compiled these during the step, so no library has their code; too busy for a "not".
UNSETTLED = {
    f"triton_poi_fused__native_batch_norm_legit_functional_relu_{number}" for number in (5, 11, 27)
}


@pytest.mark.parametrize("part", ["development", "held-out"])  # the latter wrote no rules
def test_precision_and_recall_on_labelled_kernels(part: str) -> None:
    table = counters.labelled()
    table = table[table["part"] == part]
    verdict = table["kernel"].map(lambda name: classify(name).verdict)
    used, called = table["truth"] == USED, verdict == USED
    assert len(table) > 200 and used.sum() > 100
    assert (used & called).sum() >= 0.99 * called.sum()  # precision
    assert (used & called).sum() >= 0.98 * used.sum()  # recall
    assert (verdict == UNKNOWN).sum() <= 0.1 * len(table)


def test_every_large_kernel_of_the_h100_is_judged_right() -> None:
    folder = trace_folder("nvidia-h100")
    table = counters.read_commented(folder / "ncu.csv").replace({"kernel": {"": None}})
    table["kernel"] = table["kernel"].ffill()
    code = counters.read_commented(folder / "sass.csv").set_index("kernel")["mma"]
    active = table.groupby("kernel")["tensor_active"].transform("max")
    mma = table["kernel"].map(code)
    by_code = np.select([mma.isna(), mma == ""], ["unclear", NOT], USED)
    truth = pd.Series(np.select([active >= SURE, active <= NONE], [USED, NOT], by_code))
    verdict = pd.Series([classify(name).verdict for name in table["kernel"]])
    large = table["share"] > LARGE
    unclear = table[large & (truth == "unclear")]
    assert set(unclear["kernel"]) == UNSETTLED and unclear["tensor_active"].max() < 0.006
    assert table.loc[large & (truth != verdict), "kernel"].isin(UNSETTLED).all()
    assert {"device", "tf32", "amp", "channels_last", "compile"} <= set(table["setting"])
    by_name = table["share"].where(verdict == USED, 0).groupby(table["setting"]).sum()
    in_truth = table["share"].where(truth == USED, 0).groupby(table["setting"]).sum()
    assert (by_name - in_truth).abs().max() < 0.01
