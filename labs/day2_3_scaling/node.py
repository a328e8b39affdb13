"""What the eight GPUs of a node bring: as it was predicted, and then measured.

predicted_x8.json is what was written down before a node was to be had, with the day and the
recorded runs that it was fitted to. research/predict_node.py computes it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from course.runs import recordings
from labs.day2_3_scaling import efficiency

if TYPE_CHECKING:
    import pandas as pd

NODE = "nvidia-h200-x8"
GPUS, EACH = 8, recordings.SETUP["batch_size"]  # of a node; images of each in a step
PREDICTED = Path(__file__).with_name("predicted_x8.json")


class Published(NamedTuple):
    """A node whose training of ResNet-50 on ImageNet was published."""

    what: str
    gpus: str
    images_per_s: float
    source: str


RESULTS = "https://github.com/mlcommons/training_results_v4.0"  # there in NVIDIA/results:
PUBLISHED = (
    Published("MLPerf v4.0", "8 × H200", 63_599, RESULTS),  # h200_ngc24.04_mxnet/resnet
    Published("MLPerf v4.0", "8 × H100", 57_295, RESULTS),  # eos_ngc24.04_mxnet/resnet
)


def written() -> dict[str, Any]:
    """The prediction's file: date, device, gpus, images_each; fitted_to, names of recorded runs by
    machine; replaced_run, what a run measured that another has replaced since; and rungs, the
    rows of `predicted`."""
    return json.loads(PREDICTED.read_text())


def predicted() -> pd.DataFrame:
    """What was written down, a row a rung.

    Columns: rung, alone_images_per_s (of one GPU), own_ms (DDP's own work), exposed_ms (sent after
    backward), images_per_s, efficiency; each but exposed_ms with _low and _high behind it.
    """
    import pandas as pd

    return pd.DataFrame(written()["rungs"])


def measured(machine: str = NODE, purpose: str = "scaling") -> pd.DataFrame:
    """The recorded runs on all GPUs of a node, 256 images on each: rows as of `scaling`, and rung.

    Empty where no node was recorded yet.

    Args:
        purpose: "scaling" of synthetic images, "feeding" of files that the GPUs decode.
    """
    import pandas as pd

    tables = [pd.DataFrame(columns=["rung", "gpus", "images_each"])]
    known = machine in recordings.machines()
    runs = recordings.recorded_runs(machine, purpose) if known else []
    for name in dict.fromkeys(run.config.rung for run in runs):
        some = [run for run in runs if run.config.rung == name and run.record.status == "ok"]
        if some:
            tables.append(efficiency.scaling(some).assign(rung=name))
    rows = pd.concat(tables)
    return rows[(rows["gpus"] == GPUS) & (rows["images_each"] == EACH)].reset_index(drop=True)


def beside_prediction(rung: str, machine: str = NODE) -> pd.DataFrame:
    """A rung on all GPUs of a node as `measured`, beside what was predicted of it.

    Columns besides: predicted_ and then images_per_s or efficiency, with _low and _high behind.
    Empty where no node was recorded yet: a prediction alone is nothing to draw among measurements.
    """
    rows = measured(machine)
    rows = rows[rows["rung"] == rung]
    return (
        rows
        if rows.empty
        else rows.merge(
            predicted().add_prefix("predicted_").rename(columns={"predicted_rung": "rung"}),
            on="rung",
        )
    )
