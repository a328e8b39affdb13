"""The referee: judge weights on the validation crops, which no run of a race can read.

It is a separate process: `python -m race.referee FOLDER …` reads each run's weights and
writes `referee.json` next to them. It loads tensors only, never code: into a network of the course
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

from course import Run
from course.data import crop_set, normalised
from course.runs import write_atomically
from course.training import models
from race import exported_network
from race.clock import INTERMEDIATE_WEIGHTS, NETWORK
from race.entries import VERDICT

BATCH = 128  # images: with more, activations exceed a CPU's caches
MAX_CONSTANTS = 4096  # numbers in a network that are not weights: more could be hidden weights
Weights = Mapping[str, torch.Tensor]
Network = Callable[[torch.Tensor], torch.Tensor]


class Refused(Exception):
    """Weights that cannot be judged; the message is for the script's author."""


def main(folders: list[str]) -> None:
    """Judge the runs in these folders."""
    crops = crop_set.Crops(crop_set.ensure(), "val")
    for folder in folders:
        write_verdict(Path(folder), crops)


def write_verdict(folder: Path, crops: crop_set.Crops) -> None:
    """Judge a run, or write why it cannot be judged."""
    try:
        verdict = judge(folder, crops)
    except Refused as reason:
        verdict = {"refused": str(reason)}
    except Exception as error:  # a script may leave any kind of file
        reason = f"it cannot be judged: {type(error).__name__}: {_last_lines(error)}"
        verdict = {"refused": reason}
    verdict |= {"validated_on": fingerprint(crops)}
    write_atomically(folder / VERDICT, json.dumps(verdict))


def fingerprint(crops: crop_set.Crops) -> str:
    """Identify a set of validation crops by the beginning of its SHA-256."""
    digest = hashlib.sha256(crops.images.numpy().tobytes())
    digest.update(crops.labels.numpy().tobytes())
    return digest.hexdigest()[:16]


def judge(folder: Path, crops: crop_set.Crops) -> dict[str, Any]:
    """Compute the accuracy of a run's weights, and of those that it saved during training.

    Returns:
        "top1", "on_the_way" (a list), and "weights", the beginning of their file's SHA-256.

    Raises:
        Refused: no weights, weights of a different network, or values that are not finite.
    """
    path = folder / "weights.pt"
    if not path.exists():
        raise Refused("it left no weights: call run.save_weights(net) at the end, on rank 0")
    weights = load_weights(path)
    top1 = accuracy(load_network(folder, weights), crops)
    earlier = (
        _load(folder / INTERMEDIATE_WEIGHTS) if (folder / INTERMEDIATE_WEIGHTS).exists() else []
    )
    on_the_way = [
        top1
        if _equal(saved, weights)  # the last ones usually are
        else accuracy(load_network(folder, saved), crops, finite=False)
        for saved in earlier
    ]
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    return {"top1": top1, "on_the_way": on_the_way, "weights": digest}


def _equal(a: Weights, b: Weights) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def load_weights(path: Path) -> Weights:
    """Load weights by name. Raises Refused for anything but finite tensors."""
    weights = _load(path)
    if not isinstance(weights, dict) or not all(map(torch.is_tensor, weights.values())):
        raise Refused("weights.pt has no tensors by name: pass the network to run.save_weights")
    for name, tensor in weights.items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise Refused(f"training diverged: {name} has values that are not finite")
    return weights


def _load(path: Path) -> Any:
    try:
        return torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:  # from pickle, zipfile or torch
        raise Refused(
            f"{path.name} has more than tensors, and nothing in it is run ({type(error).__name__})"
        ) from error


def load_network(folder: Path, weights: Weights) -> Network:
    """Load the network that a run trained, with these weights. Raises Refused."""
    if (folder / NETWORK).exists():
        return load_exported(folder / NETWORK, weights)
    config = Run(folder).config
    net = models.create(config.model, len(crop_set.PHOTOGRAPHS), config.image_px)
    try:
        net.load_state_dict(dict(weights))
    except RuntimeError as error:
        raise Refused(
            f"the weights are not those of {config.model}, which SETTINGS names: "
            f"{_last_lines(error)}. If the network is yours, call run.save_network(net)"
        ) from error
    return net.eval().to(_device(), memory_format=torch.channels_last)


def load_exported(path: Path, weights: Weights) -> Network:
    """Load an exported network with these weights. Raises Refused."""
    try:
        program = exported_network.load(path)
    except exported_network.Unsafe as reason:
        raise Refused(f"{path.name} is not opened: {reason}") from reason
    except (OSError, zipfile.BadZipFile) as error:
        raise Refused(f"{path.name} is not an exported network ({_last_lines(error)})") from error
    except Exception as error:
        raise Refused(f"{path.name} cannot be read: {_last_lines(error)}") from error
    constants = sum(c.numel() for c in program.constants.values() if torch.is_tensor(c))
    if constants > MAX_CONSTANTS:
        raise Refused(
            f"{path.name} has {constants:,} numbers besides its weights, which were written before "
            f"the clock started: make them parameters or buffers"
        )
    device = _device()
    if device.type != "cpu":
        program = move_to_device_pass(program, device)
    net = program.module()
    try:
        net.load_state_dict({name: tensor.to(device) for name, tensor in weights.items()})
    except RuntimeError as error:
        raise Refused(f"weights.pt are not those of {path.name}: {_last_lines(error)}") from error
    return net


def _device() -> torch.device:
    device = torch.accelerator.current_accelerator(check_available=True)
    return device if device and device.type == "cuda" else torch.device("cpu")


@torch.no_grad()
def accuracy(net: Network, crops: crop_set.Crops, finite: bool = True) -> float:
    """Compute the share of crops whose class has the highest score, in fp32.

    Raises:
        Refused: scores of a wrong shape, or that are not finite.
    """
    device, right = _device(), 0
    for images, labels in zip(crops.images.split(BATCH), crops.labels.split(BATCH)):
        batch = normalised(images.to(device)).contiguous(memory_format=torch.channels_last)
        try:
            scores = net(batch)
        except Exception as error:  # an exported network's checks raise many types
            raise Refused(
                f"the network does not accept a batch of {len(images)} crops: "
                f"{type(error).__name__}: {_last_lines(error)}"
            ) from error
        if not torch.is_tensor(scores):
            raise Refused(f"the network returns a {type(scores).__name__}, expected scores")
        if scores.shape != (len(labels), len(crops.classes)):
            raise Refused(
                f"the network returns shape {tuple(scores.shape)}, expected "
                f"{(len(labels), len(crops.classes))}: a score for each image and class"
            )
        if finite and not scores.isfinite().all():
            raise Refused("training diverged: scores are not finite")
        right += int((scores.argmax(1).cpu() == labels).sum())
    return right / len(crops)


def _last_lines(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[-2:])[:200]


if __name__ == "__main__":
    main(sys.argv[1:])
