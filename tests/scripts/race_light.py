"""A script for the race that trains nothing. The entry's name selects how it fails."""

import os

import torch

from course.data.loader import image_sets
from course.training import models
from course.training.recorder import recording

SETTINGS = {"model": "resnet8_patches", "epochs": 1, "steps": 1, "batch_size": 64}


class Opens:
    """An object that runs code when it is unpickled."""

    def __reduce__(self):
        return (os.mkdir, ("opened",))


def main(run):
    way = run.config.rung.removeprefix("race-quick-")
    sets = image_sets(run.config)
    assert len(sets.val) == 0  # no run gets any
    if way == "crashes":
        raise RuntimeError("this script was not finished")
    net = models.create(run.config.model, sets.classes)
    if way == "own_network":
        net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, sets.classes))
    run.ready()
    run.keep_weights(net)
    if way == "diverges":
        net[-1].weight.data.fill_(float("nan"))
    if way == "other_shapes":
        net = models.create("resnet18", sets.classes)
    if way == "pickles":
        torch.save(Opens(), run.folder / "weights.pt")
    elif way != "leaves_none":
        run.save_weights(net)
    if way == "own_network":
        run.save_network(net)


if __name__ == "__main__":
    with recording() as run:
        main(run)
