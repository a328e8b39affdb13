"""How often a kernel's name tells the truth: labelled kernels, and full steps that ncu counted."""

from __future__ import annotations

import numpy as np
import pandas as pd

from course.analysis.tensor_cores import counters
from course.analysis.tensor_cores.rules import NOT, UNKNOWN, USED, classify
from course.runs.recordings import trace_folder

LARGE = 0.005  # of a step: a kernel with a larger share must be judged right
# With a share of busy cycles up to NONE a kernel has no product on Tensor Cores, and from SURE on
# it has. Between them it is unclear: on an H100 a pointwise GELU kept the pipe busy for 12 % of
# the cycles, and the product of two small matrices for 1 %.
NONE, SURE = 0.005, 0.15
RIGHT, WRONG, UNCLEAR = "right", "wrong", "unclear"


def score(kernels: pd.DataFrame | None = None) -> pd.DataFrame:
    """Compute precision and recall of the verdict "used", one row per part of the kernels.

    Columns: part, kernels, used (that truly are), found (of those), false_alarms (called used, but
    are not), unknown (no rule decides), precision = found / (found + false_alarms), recall =
    found / used (an unknown kernel counts as missed).

    Args:
        kernels: kernel, truth and part; by default the labelled ones.
    """
    table = counters.labelled() if kernels is None else kernels
    verdict = table["kernel"].map(lambda name: classify(name).verdict)
    used, called = table["truth"] == USED, verdict == USED
    columns = {
        "kernels": used | True,
        "used": used,
        "found": used & called,
        "false_alarms": ~used & called,
        "unknown": verdict == UNKNOWN,
    }
    sums = pd.DataFrame(columns).groupby(table["part"], sort=False).sum().reset_index()
    precision = sums["found"] / (sums["found"] + sums["false_alarms"])
    return sums.assign(precision=precision, recall=sums["found"] / sums["used"])


def judge_kernels(machine: str = "nvidia-h100") -> pd.DataFrame:
    """Compare the verdict of each kernel's name with the truth, in every recorded setting.

    The share of busy cycles decides where it is sure; between `NONE` and `SURE` the machine code
    does, if it was read. All settings count together, because kernels of the same name have the
    same machine code.

    Columns: those of `read_counters`; truth: "used", "not" or "unclear"; by_code, whether the
    machine code decided; verdict, of `classify`; result: "right", "wrong", "unknown" if no rule
    decides, "unclear" without evidence.
    """
    path = trace_folder(machine) / counters.COUNTERS_FILE
    table = counters.read_counters(path)
    code = counters.read_sass(path.with_name(counters.SASS_FILE)).set_index("kernel")["mma"]
    active = table.groupby("kernel")["tensor_active"].transform("max")
    mma = table["kernel"].map(code)
    by_cycles = np.select([active >= SURE, active <= NONE], [USED, NOT], UNCLEAR)
    by_code = np.select([mma.isna(), mma == ""], [UNCLEAR, NOT], USED)
    table["truth"] = np.where(by_cycles == UNCLEAR, by_code, by_cycles)
    table["by_code"] = (by_cycles == UNCLEAR) & (by_code != UNCLEAR)
    table["verdict"] = verdict = [classify(name).verdict for name in table["kernel"]]
    cases = [table["verdict"] == UNKNOWN, table["truth"] == UNCLEAR, table["truth"] == verdict]
    table["result"] = np.select(cases, [UNKNOWN, UNCLEAR, RIGHT], WRONG)
    return table


def summarize_verdicts(judged: pd.DataFrame) -> pd.DataFrame:
    """Count the right verdicts of each setting, the slowest first.

    Columns: setting; large, the kernels with more than `LARGE` of the step, and of these right,
    wrong, unknown and unclear; by_code, those whose truth the machine code shows; name_share and
    true_share, of the step in Tensor Core kernels, by name and in truth.
    """
    rows = []
    for setting, group in judged.groupby("setting", sort=False):
        large = group[group["share"] > LARGE]
        rows.append(
            {
                "setting": setting,
                "large": len(large),
                **{r: (large["result"] == r).sum() for r in (RIGHT, WRONG, UNKNOWN, UNCLEAR)},
                "by_code": large["by_code"].sum(),
                "name_share": group.loc[group["verdict"] == USED, "share"].sum(),
                "true_share": group.loc[group["truth"] == USED, "share"].sum(),
                "gpu_s": group["seconds"].sum(),
            }
        )
    table = pd.DataFrame(rows).sort_values("gpu_s", ascending=False, ignore_index=True)
    return table.drop(columns="gpu_s")
