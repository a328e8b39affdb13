"""The plans that a machine records, and the times of steps that save."""

import pandas as pd

from labs.two_dimensions import mesh_config, saving_times
from labs.two_dimensions.lab import LAB


class Saved:
    """A run that saves after every second step."""

    config = mesh_config(2, 2, save_every=2)
    steps = pd.DataFrame({"step": range(6), "step_s": [1, 1, 9, 2, 1, 3]})


def test_a_save_costs_what_it_adds_until_the_next() -> None:
    row = saving_times({"at once": Saved()}).loc["at once"]
    assert row.to_dict() == {"step": 1500, "save 1": 8000, "save 2": 1000}


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
