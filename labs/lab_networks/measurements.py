"""What research/networks.py measured on a GPU, as tables."""

from __future__ import annotations

import numpy as np
import pandas as pd

from course.runs.recordings import recorded_table
from labs.lab_networks.published import GPUS, PRECISIONS, ratios, speeds

BATCHES = (("resnet50", 64), ("ssd300", 32), ("unet3d", 2))
BEST = {"precision": "fp16", "layout": "channels_last"}
# The settings of inference, each a step from the one before: precision, layout, compiled.
INFERENCE = (
    ("fp32", "contiguous", False),
    ("fp16", "contiguous", False),
    ("fp16", "channels_last", False),
    ("fp16", "channels_last", True),
)
AT_WORK = ", at work"  # after a GPU's name: if it never waited for the host


def recorded(machine: str) -> pd.DataFrame:
    """What was measured on a machine, a row a setting.

    Columns: those of `bench.Setting`; images_per_s and step_s with quartiles; timed; peak_gib; of
    one traced step of training busy_s (seconds for which the GPU has work), gpu_s,
    tensor_core_share, kinds (shares by what operators do) and kernels (the longest); machine. And
    what follows from them (NaN: not traced): busy, busy_s as a share of step_s; at_work_per_s,
    images a second if the GPU never waited for the host; against_fp32 and work_against_fp32, both
    speeds by those in fp32, of the same network, mode and batch.

    Compare settings by the latter where busy is low: how long a host takes hangs on what else its
    processor does.

    Raises:
        ValueError: nothing was recorded there.
    """
    table = _with_busy(recorded_table(machine, "networks"))
    of = ["network", "mode", "batch"]
    plain = (table["precision"] == "fp32") & (table["layout"] == "contiguous")
    plain &= ~table["compile"] & (table["data"] == "synthetic")
    base = table[plain].set_index(of)[["images_per_s", "at_work_per_s"]]
    base = table[of].join(base, on=of)
    return table.assign(
        against_fp32=table["images_per_s"] / base["images_per_s"],
        work_against_fp32=table["at_work_per_s"] / base["at_work_per_s"],
    )


def _with_busy(table: pd.DataFrame) -> pd.DataFrame:
    """A traced step has the profiler's calls between its kernels, so its own length tells little:
    seconds of work are from there, and the step's from the timed ones."""
    busy_s = table.get("busy_s", np.nan)
    busy = (busy_s / table["step_s"]).clip(upper=1.0)
    return table.assign(busy=busy, at_work_per_s=table["images_per_s"] / busy)


def gains(table: pd.DataFrame) -> pd.DataFrame:
    """What Tensor Cores can bring each network, from the traced step of fp32; a row a batch.

    Columns: products (their share of the time), at_most (times as fast, if products took no time
    and all else stayed), tf32 (times as fast as fp32, as recorded; NaN: it was not),
    tf32_a100 and fp16_a100, as published for the batch of the published benchmark.

    Args:
        table: of `recorded`.
    """
    rows = table[(table["mode"] == "train") & (table["data"] == "synthetic")]
    fp32 = rows[(rows["precision"] == "fp32") & rows["kinds"].map(lambda k: isinstance(k, dict))]
    found = fp32.set_index(["network", "batch"])[["kinds"]].sort_index(ascending=[False, True])
    tf32 = rows[rows["precision"] == "tf32"].set_index(["network", "batch"])["against_fp32"]
    found["products"] = [kinds["products"] for kinds in found["kinds"]]
    found["at_most"] = 1 / (1 - found["products"])
    found["tf32"] = tf32.reindex(found.index)
    theirs = ratios().xs("A100", level="gpu")
    for name in ("tf32", "fp16"):
        found[f"{name}_a100"] = [theirs.loc[network, name] for network, _ in found.index]
    return found.drop(columns="kinds")


def beside(table: pd.DataFrame, name: str) -> pd.DataFrame:
    """Every published row, and the same settings as recorded: images a second in training.

    Index network and gpu: the published ones, then `name` twice, as reached and, with AT_WORK, if
    the GPU never waited for the host. Columns: fp32, tf32, fp16; NaN: failed, or without units.

    Args:
        table: of `recorded`.
    """
    ours = {
        f"{name}{words}": _of_mode(table, "train", speed).xs(
            ("contiguous", False), axis=1, level=("layout", "compile")
        )
        for words, speed in (("", "images_per_s"), (AT_WORK, "at_work_per_s"))
    }
    ours = pd.concat(ours, names=["gpu", "network"]).swaplevel()
    ours = ours.reindex(columns=[*PRECISIONS]).rename_axis(columns=None)
    found = pd.concat([speeds(), ours])
    order = [*GPUS, *ours.index.unique("gpu")]
    return found.reindex([(each, gpu) for each in found.index.unique("network") for gpu in order])


def layouts(table: pd.DataFrame) -> pd.DataFrame:
    """fp16 in training, by network, at the published batch, images/s of the GPU's work alone
    (at_work_per_s): contiguous, channels_last, compiled (in channels_last); and what the layout
    and the compiler bring, × the one before.

    Args:
        table: of `recorded`. NaN: it has no such row, or none that was traced.
    """
    of = _of_mode(table, "train", "at_work_per_s")
    found = pd.DataFrame(
        {
            "contiguous": of.get(("fp16", "contiguous", False)),
            "channels_last": of.get(("fp16", "channels_last", False)),
            "compiled": of.get(("fp16", "channels_last", True)),
        },
        index=of.index,
        dtype=float,
    )
    found["layout_brings"] = found["channels_last"] / found["contiguous"]
    found["compiler_brings"] = found["compiled"] / found["channels_last"]
    return found


def inference(table: pd.DataFrame) -> pd.DataFrame:
    """How many times as fast inference is as the GPU's work of training (at_work_per_s): a row a
    network, a column a setting.

    Args:
        table: of `recorded`.
    """
    found = _of_mode(table, "infer") / _of_mode(table, "train", "at_work_per_s")
    found = found[[each for each in INFERENCE if each in found]].dropna(axis=1, how="all")
    names = [f"{p} {layout}" + " compiled" * compiled for p, layout, compiled in found.columns]
    return found.set_axis(names, axis=1)


def _of_mode(table: pd.DataFrame, mode: str, speed: str = "images_per_s") -> pd.DataFrame:
    """Images/s at the published batch of random images: a row a network, a column a setting."""
    published = table["batch"] == table["network"].map(dict(BATCHES))
    rows = table[published & (table["mode"] == mode) & (table["data"] == "synthetic")]
    wide = rows.pivot(index="network", columns=["precision", "layout", "compile"], values=speed)
    return wide.reindex([name for name, _ in BATCHES])


def from_files(table: pd.DataFrame) -> pd.DataFrame:
    """A row a network that was fed from files: images/s of random images that lie on the GPU
    (synthetic), from files (photographs), kept (their ratio), and workers.

    Args:
        table: of `recorded`.
    """
    files = table[table["data"] == "photographs"].set_index("network")
    synthetic = _of_mode(table, "train").get((*BEST.values(), False))
    found = pd.DataFrame({"synthetic": synthetic, "photographs": files["images_per_s"]})
    found["kept"] = found["photographs"] / found["synthetic"]
    return found.join(files["workers"]).dropna()


def recorded_together(machine: str) -> pd.DataFrame:
    """What was measured on one and on several GPUs of a machine: columns as `recorded`, gpus.

    Raises:
        ValueError: nothing was recorded there.
    """
    return recorded_table(machine, "networks_together")


def scaling(machine: str) -> pd.DataFrame:
    """How training scales by data parallelism: a row a network, batch of each GPU, and gpus.

    Columns: images_per_s, of all GPUs together; efficiency, its share of gpus times one GPU's;
    step_s; computing_s, in which a GPU does more than to communicate, and computing, its share of
    step_s (NaN: not traced); nccl_s, the traced step's kernels that send, or wait for another GPU
    to begin; megabytes, of the gradients that are sent in a step, in fp32.

    Raises:
        ValueError: nothing was recorded there.
    """
    table = recorded_together(machine)
    one = table[table["gpus"] == 1].set_index(["network", "batch"])["images_per_s"]
    base = table[["network", "batch"]].join(one.rename("one"), on=["network", "batch"])["one"]
    computing_s = table.get("busy_s", np.nan) - table.get("exposed_s", np.nan)
    found = pd.DataFrame(
        {
            "images_per_s": table["images_per_s"],
            "efficiency": table["images_per_s"] / base / table["gpus"],
            "step_s": table["step_s"],
            "computing_s": computing_s,
            "computing": (computing_s / table["step_s"]).clip(upper=1.0),
            "nccl_s": table.get("communication_s", np.nan),
            "megabytes": 4 * table["parameters"] / 1e6 * (table["gpus"] > 1),
        }
    )
    found.index = pd.MultiIndex.from_frame(table[["network", "batch", "gpus"]])
    order = [(*each, gpus) for each in one.index for gpus in sorted(set(table["gpus"]))]
    return found.loc[[each for each in order if each in found.index]]  # a row may have failed
