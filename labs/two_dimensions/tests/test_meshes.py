"""The plans that a machine records, and the times of steps that save."""

import pandas as pd
import pytest

from labs.two_dimensions import mesh_config, saving_times
from labs.two_dimensions.lab import LAB


class Saved:
    """A run that saves after every second step; its first save takes longest."""

    config = mesh_config(2, 2, save_every=2)
    steps = pd.DataFrame({"step": range(7), "step_s": [1, 1, 9, 1, 3, 1, 3]})


def test_every_save_but_the_first_counts_in_the_mean() -> None:
    row = saving_times({"at once": Saved()}).loc["at once"]
    assert row.to_dict() == {"step_ms": 1000, "first_ms": 9000, "mean_ms": pytest.approx(7000 / 3)}


def test_four_gpus_record_each_mesh_and_each_way_to_save() -> None:
    (recording,) = LAB.recordings
    planned = [*recording.planned(4)]
    labels = [plan.config.rung for plan in planned]
    assert len({*labels}) == len(labels) and {plan.gpus for plan in planned} == {4}
    meshes = {(4 // plan.config.tensor, plan.config.tensor, plan.config.shard) for plan in planned}
    assert meshes == {(4, 1, ""), (4, 1, "zero3"), (2, 2, "zero3"), (1, 4, "zero3")}
    saves = [(plan.config.async_save, plan.config.async_process)
             for plan in planned if plan.config.save_every]  # fmt: skip
    assert saves == [(False, False), (True, False), (True, True)]
    assert not [*recording.planned(1)]
