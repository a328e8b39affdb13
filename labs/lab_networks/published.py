"""The benchmark as it was published, for P100, V100 and A100: none of these is the course's number.

Source: the GPU Benchmark Project's report, whose code is
https://github.com/daovietanh190499/Custom_Benchmarking. Training, cuDNN trying its kernels, 100
iterations of warm-up; "fp16" is autocast with loss scaling, on a P100 without Tensor Cores.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

FILE = Path(__file__).with_name("published.csv")
GPUS = ("P100", "V100", "A100")
PRECISIONS = ("fp32", "tf32", "fp16")


def table() -> pd.DataFrame:
    """Every row of its tables.

    Columns: network, gpu, precision, seconds (of the timed iterations), images_per_s, batch_said,
    iterations_said (as its headings have them), gpu_busy (percent, where it says so), images (what
    seconds and speed make together). NaN: it ended in an error (cuDNN's, of 3D convolutions in
    fp16 on a P100).
    """
    found = pd.read_csv(FILE)
    return found.assign(images=found["seconds"] * found["images_per_s"])


def speeds() -> pd.DataFrame:
    """Images a second: index network and gpu, in the order in which they came; by precision."""
    wide = table().pivot(index=["network", "gpu"], columns="precision", values="images_per_s")
    names = [(name, gpu) for name in dict.fromkeys(table()["network"]) for gpu in GPUS]
    return wide.loc[names, list(PRECISIONS)].rename_axis(columns=None)


def ratios(of: pd.DataFrame | None = None) -> pd.DataFrame:
    """How many times as fast as fp32 on the same GPU: index as `speeds`, tf32 and fp16.

    Args:
        of: speeds as `speeds` gives them, or `measured.beside`; without, the published ones.
    """
    found = speeds() if of is None else of
    return found.div(found["fp32"], axis=0).drop(columns="fp32")


def images_a_step() -> pd.DataFrame:
    """Images ÷ the iterations that its headings give, and ÷ 200, beside the batch that they give.

    Columns: network, gpu, precision, seconds, images_per_s, batch_said, iterations_said,
    by_heading, by_200.
    """
    found = table().dropna(subset="images")
    by_heading = found["images"] / found["iterations_said"]
    found = found.assign(by_heading=by_heading, by_200=found["images"] / 200)
    return found.drop(columns=["gpu_busy", "images"]).reset_index(drop=True)
