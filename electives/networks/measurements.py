"""Tables of the benchmark: as published, and as research/networks.py measured it on a GPU.

The published numbers are for P100, V100 and A100, from the report of the GPU Benchmark Project
(https://github.com/daovietanh190499/Custom_Benchmarking): training, cuDNN trying its kernels, 100
iterations of warm-up; "fp16" is autocast with loss scaling, on a P100 without Tensor Cores.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from course.runs import recorded_table
from electives.networks.catalogue import NETWORKS
from electives.networks.cost import saved_gb
from electives.networks.verify import Audit, Row

GPUS = ["P100", "V100", "A100"]
PRECISIONS = ["fp32", "tf32", "fp16"]
ORDER = ["resnet50", "ssd300", "unet3d"]
# By NVIDIA's data sheets of the P100, V100 and A100 SXM: memory, and how many times the FLOP/s of
# fp32 other precisions have.
GPU_GB = {"P100": 16.0, "V100": 16.0, "A100": 40.0}
LARGEST_RATIO = {
    "P100": {"fp32": 1.0, "fp16": 2.0},
    "V100": {"fp32": 1.0, "fp16": 8.0},
    "A100": {"fp32": 1.0, "tf32": 8.0, "fp16": 16.0},
}
QUARTILES_TO_DEVIATION = 1.349  # the interquartile range of a normal distribution


def published() -> pd.DataFrame:
    """Load every row of the published tables.

    Columns: network, gpu, precision, seconds (of the timed iterations), images_per_s, batch_said
    and iterations_said (in the headings), gpu_busy (percent, if published). NaN: an error of cuDNN.
    """
    return pd.read_csv(Path(__file__).with_name("published.csv"))


def published_speeds() -> pd.DataFrame:
    """Return the published images/s: index network and gpu, columns by precision."""
    table = published()
    wide = table.pivot(index=["network", "gpu"], columns="precision", values="images_per_s")
    rows = [(network, gpu) for network in table["network"].unique() for gpu in GPUS]
    return wide.loc[rows, PRECISIONS].rename_axis(columns=None)


def speedups(speeds: pd.DataFrame) -> pd.DataFrame:
    """Divide speeds in TF32 and fp16 by those in fp32 on the same GPU."""
    return speeds.div(speeds["fp32"], axis=0).drop(columns="fp32")


def published_rows(**changes: dict[str, int] | int) -> pd.DataFrame:
    """Return the published rows with what is needed to audit them, except failed ones.

    Columns: the fields of `verify.Row`, with batch and iterations as in the headings.

    Args:
        changes: batch or iterations: one value for all rows, or one by network.
    """
    table = published().dropna(subset="seconds").reset_index(drop=True)
    table = table.rename(columns={"batch_said": "batch", "iterations_said": "iterations"})
    for column, values in changes.items():
        if isinstance(values, dict):
            table[column] = table["network"].map(values).fillna(table[column]).astype(int)
        else:
            table[column] = values
    rows = list(zip(table["network"], table["gpu"], table["precision"]))
    fp32 = published_speeds()["fp32"]
    table["fp32_images_per_s"] = [fp32[network, gpu] for network, gpu, _ in rows]
    table["largest_ratio"] = [LARGEST_RATIO[gpu][precision] for _, gpu, precision in rows]
    table["weights_gb"] = [saved_gb(network, "fp32")["weights"] for network, *_ in rows]
    table["image_gb"] = [saved_gb(network, precision)["image"] for network, _, precision in rows]
    table["gpu_gb"] = table["gpu"].map(GPU_GB)
    table["spread"] = step_spread(load_measurements("nvidia-h100"))
    return table[list(Row._fields)]


def step_spread(table: pd.DataFrame) -> float:
    """Return the largest relative standard deviation of a training step in a table's rows."""
    ranges = (table["step_s_q3"] - table["step_s_q1"]) / table["step_s"]
    return float(ranges.max() / QUARTILES_TO_DEVIATION)


def audit_table(table: pd.DataFrame, audit: Audit) -> pd.DataFrame:
    """Return the problems that an audit finds in each row, one cell for each network and GPU.

    Index: network, gpu. Columns: precisions; "✓" is a row without problems, "" no such row.
    """
    rows = [Row(*values) for values in table.itertuples(index=False)]
    audited = table.assign(problems=[", ".join(audit(row)) or "✓" for row in rows])
    wide = audited.pivot(index=["network", "gpu"], columns="precision", values="problems")
    order = [(network, gpu) for network in table["network"].unique() for gpu in GPUS]
    return wide.loc[order, PRECISIONS].fillna("").rename_axis(columns=None)


def load_measurements(machine: str) -> pd.DataFrame:
    """Load the training steps that were measured on a machine, a row per setting.

    Columns: the fields of `bench.Setting`; images_per_s and step_s with quartiles; timed; peak_gib;
    what research/networks.py's `trace_step` returned; machine; busy (busy_s as a share of step_s);
    images_per_busy_s (images/s if the GPU never waited for the host; NaN: not traced); speedup
    (over fp32 with the same network and batch).

    If `busy` is low, compare images_per_busy_s: the host's time depends on its other programs.

    Raises:
        ValueError: nothing was recorded there.
    """
    table = recorded_table(machine, "networks").query("mode == 'train'")
    # The profiler lengthens a traced step, so busy seconds are compared with the timed steps.
    busy = (table.get("busy_s", np.nan) / table["step_s"]).clip(upper=1.0)
    same = ["network", "batch"]
    fp32 = table.query("precision == 'fp32' and layout == 'contiguous' and not compile")
    fp32 = fp32.set_index(same)["images_per_s"]
    return table.assign(
        busy=busy,
        images_per_busy_s=table["images_per_s"] / busy,
        speedup=table["images_per_s"] / table.join(fp32.rename("fp32"), on=same)["fp32"],
    )


def tensor_core_gains(table: pd.DataFrame) -> pd.DataFrame:
    """Return what Tensor Cores can gain, from the traced step in fp32: a row per network and batch.

    Columns: products (their share of the time), at_most (the speedup if products took no time),
    tf32 (the recorded speedup; NaN: not measured), tf32_a100 and fp16_a100 (published).

    Args:
        table: from `load_measurements`, as in all functions below.
    """
    index = ["network", "batch"]
    rows = table.set_index(index)
    traced = rows[(rows["precision"] == "fp32") & rows["kinds"].notna()]
    gains = pd.DataFrame({"products": traced["kinds"].map(lambda kinds: kinds["products"])})
    gains = gains.sort_index(ascending=[False, True])
    gains["at_most"] = 1 / (1 - gains["products"])
    gains["tf32"] = rows.loc[rows["precision"] == "tf32", "speedup"].reindex(gains.index)
    a100 = speedups(published_speeds()).xs("A100", level="gpu").add_suffix("_a100")
    return gains.join(a100, on="network")


def speeds_by_setting(table: pd.DataFrame, column: str) -> pd.DataFrame:
    """Return speeds at the published batch, by network and setting."""
    batches = table["network"].map({name: spec.batch_size for name, spec in NETWORKS.items()})
    rows = table[table["batch"] == batches]
    settings = ["precision", "layout", "compile"]
    return rows.pivot(index="network", columns=settings, values=column).reindex(ORDER)
