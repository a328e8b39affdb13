"""The plans that a machine records."""

from labs.two_dimensions.lab import LAB


def test_four_gpus_record_each_mesh_and_each_way_to_save() -> None:
    (recording,) = LAB.recordings
    planned = [*recording.planned(4)]
    labels = [plan.config.rung for plan in planned]
    assert {plan.config.steps for plan in planned} == {24, 32}  # more than the notebook's
    assert len({*labels}) == len(labels) and {plan.gpus for plan in planned} == {4}
    meshes = {(4 // plan.config.tensor, plan.config.tensor, plan.config.shard) for plan in planned}
    assert meshes == {(4, 1, ""), (4, 1, "zero3"), (2, 2, "zero3"), (1, 4, "zero3")}
    saves = [(plan.config.async_save, plan.config.async_process)
             for plan in planned if plan.config.save_every]  # fmt: skip
    assert saves == [(False, False), (True, False), (True, True)]
    assert not [*recording.planned(1)]
