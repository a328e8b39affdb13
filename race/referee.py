"""The referee: reads the validation crops, which no run of a race is given, and judges weights.

A process of its own: `python -m race.referee FOLDER …` looks at each run's weights and
writes `referee.json` beside them. It loads tensors alone, never code: into a network of the course
that the config names, or into the operations that `torch.export` wrote.
"""

from __future__ import annotations

import hashlib
import json
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.export.passes import move_to_device_pass

from course.data import crop_set
from course.data.crop_set import Crops
from course.data.loader import normalised
from course.runs.files import write_atomically
from course.runs.run import Run
from course.training import models
from course.training.racing.network import NETWORK
from course.training.racing.watch import ON_THE_WAY
from race import exported
from race.board import VERDICT

AT_ONCE = 128  # images: of more, what layers hand on leaves a processor's caches
MOST_CONSTANTS = 4096  # numbers in a network that are no weights: more could be hidden ones
Weights = Mapping[str, torch.Tensor]


class Refused(Exception):
    """These weights cannot be judged; the message says why, for whoever wrote the script."""


def main(folders: list[str]) -> None:
    """Judge the runs in these folders."""
    crops = Crops(crop_set.ensure(), "val")
    for folder in folders:
        write_verdict(Path(folder), crops)


def write_verdict(folder: Path, crops: Crops) -> None:
    """Judge a run, or say why it cannot be."""
    try:
        verdict = judge(folder, crops)
    except Refused as why:
        verdict = {"refused": str(why)}
    except Exception as error:  # whatever a script may leave: its entry is told, and stays
        verdict = {"refused": f"it cannot be judged: {type(error).__name__}: {_brief(error)}"}
    about = verdict | {"validated_on": fingerprint(crops)}
    write_atomically(folder / VERDICT, json.dumps(about))


def fingerprint(crops: Crops) -> str:
    """What tells one set of validation crops from another: the beginning of its SHA-256."""
    digest = hashlib.sha256(crops.images.numpy().tobytes())
    digest.update(crops.labels.numpy().tobytes())
    return digest.hexdigest()[:16]


def judge(folder: Path, crops: Crops) -> dict[str, Any]:
    """The accuracy of a run's weights, and of those that it kept on the way.

    Returns:
        "top1", "on_the_way" (a list), and "weights", the beginning of their file's SHA-256.

    Raises:
        Refused: no weights, others than the network's, or values that are no numbers.
    """
    path = folder / "weights.pt"
    if not path.exists():
        raise Refused("it left no weights: call run.save_weights(net) at the end, on rank 0")
    weights = tensors(path)
    top1 = accuracy(network(folder, weights), crops)
    kept = _read(folder / ON_THE_WAY) if (folder / ON_THE_WAY).exists() else []
    way = [
        top1 if _equal(each, weights) else accuracy(network(folder, each), crops, finite=False)
        for each in kept
    ]
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    return {"top1": top1, "on_the_way": way, "weights": digest}


def _equal(some: Weights, others: Weights) -> bool:
    """The last weights on the way are mostly those of the end: they need no second look."""
    return some.keys() == others.keys() and all(
        torch.equal(each, others[name]) for name, each in some.items()
    )


def tensors(path: Path) -> Weights:
    """The weights in a file, by name. Raises Refused if they are anything else than tensors."""
    weights = _read(path)
    if not isinstance(weights, dict) or not all(map(torch.is_tensor, weights.values())):
        raise Refused("weights.pt holds no tensors by name: give run.save_weights the network")
    for name, each in weights.items():
        if each.is_floating_point() and not each.isfinite().all():
            raise Refused(f"training diverged: {name} holds values that are no numbers")
    return weights


def _read(path: Path) -> Any:
    try:
        return torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:  # pickle's, zipfile's, torch's own
        raise Refused(
            f"{path.name} cannot be read as tensors alone; what else it may hold is not run "
            f"({type(error).__name__})"
        ) from error


def network(folder: Path, weights: Weights) -> Callable[[torch.Tensor], torch.Tensor]:
    """What the run trained, with these weights, ready to be asked. Raises Refused."""
    if (folder / NETWORK).exists():
        return _exported(folder / NETWORK, weights)
    config = Run(folder).config
    net = models.create(config.model, len(crop_set.PHOTOGRAPHS), config.image_px)
    try:
        net.load_state_dict(dict(weights))
    except RuntimeError as error:
        raise Refused(
            f"the weights are not those of {config.model}, which SETTINGS names: "
            f"{_brief(error)}. A network of one's own is written by run.save_network(net)"
        ) from error
    return net.eval().to(_device(), memory_format=torch.channels_last)


def _exported(path: Path, weights: Weights) -> Callable[[torch.Tensor], torch.Tensor]:
    try:
        program = exported.load(path)
    except exported.Unsafe as why:
        raise Refused(f"{path.name} is not opened: {why}") from why
    except (OSError, zipfile.BadZipFile) as error:
        raise Refused(f"{path.name} is no exported network ({_brief(error)})") from error
    except Exception as error:
        raise Refused(f"{path.name} cannot be read: {_brief(error)}") from error
    numbers = sum(each.numel() for each in program.constants.values() if torch.is_tensor(each))
    if numbers > MOST_CONSTANTS:
        raise Refused(
            f"{path.name} holds {numbers:,} numbers beside its weights, which the clock did not "
            f"see written: make them parameters or buffers"
        )
    device = _device()
    if device.type != "cpu":
        program = move_to_device_pass(program, device)
    net = program.module()
    try:
        net.load_state_dict({name: each.to(device) for name, each in weights.items()})
    except RuntimeError as error:
        raise Refused(f"weights.pt are not those of {path.name}: {_brief(error)}") from error
    return net


def _device() -> torch.device:
    found = torch.accelerator.current_accelerator(check_available=True)
    return found if found and found.type == "cuda" else torch.device("cpu")


@torch.no_grad()
def accuracy(
    net: Callable[[torch.Tensor], torch.Tensor], crops: Crops, finite: bool = True
) -> float:
    """The share of the crops whose class has the highest score; in fp32, each asked about once.

    Raises:
        Refused: scores of another shape, or none that are numbers.
    """
    device, right = _device(), 0
    for images, labels in zip(crops.images.split(AT_ONCE), crops.labels.split(AT_ONCE)):
        try:
            scores = net(_ready(images.to(device)))
        except Exception as error:  # an exported network's own checks raise many kinds
            raise Refused(
                f"the network does not take {len(images)} crops at once: "
                f"{type(error).__name__}: {_brief(error)}"
            ) from error
        if not torch.is_tensor(scores):
            raise Refused(f"the network answers with a {type(scores).__name__}, not with scores")
        if scores.shape != (len(labels), len(crops.classes)):
            raise Refused(
                f"the network answers with {tuple(scores.shape)} for {len(labels)} images of "
                f"{len(crops.classes)} classes"
            )
        if finite and not scores.isfinite().all():
            raise Refused("training diverged: scores are no numbers")
        right += int((scores.argmax(1).cpu() == labels).sum())
    return right / len(crops)


def _ready(images: torch.Tensor) -> torch.Tensor:
    return normalised(images).contiguous(memory_format=torch.channels_last)


def _brief(error: Exception) -> str:
    said = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(said[-2:])[:200]


if __name__ == "__main__":
    main(sys.argv[1:])
