"""The referee: networks that it cannot judge, and files that contain code."""

import io
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from course.data import crop_set
from course.data.crop_set import Crops
from race import referee, submission
from race.clock import NETWORK, write_network
from race.tracks import find_track

LINEAR = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 16))


@pytest.fixture(scope="module")
def crops() -> Crops:
    return Crops(crop_set.ensure(), "val").first(64)


def test_a_referee_that_takes_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that was judged before keeps its verdict; the other gets the reason."""
    judged, waiting = (tmp_path / name for name in ("judged", "waiting"))
    for folder in (judged, waiting):
        folder.mkdir()
    (judged / submission.VERDICT).write_text('{"top1": 0.5}')
    monkeypatch.setattr(submission, "REFEREE_LIMIT", 1e-3)
    submission.judge([judged, waiting], find_track("quick"))
    assert json.loads((judged / submission.VERDICT).read_text()) == {"top1": 0.5}
    verdict = json.loads((waiting / submission.VERDICT).read_text())
    assert "longer than 0.12 s" in verdict["refused"]


class Changed(nn.Module):
    """A network with a changed output."""

    def __init__(self, change: Callable) -> None:
        super().__init__()
        self.net, self.change = LINEAR, change

    def forward(self, images: torch.Tensor) -> object:
        return self.change(self.net(images))


class Reshapes(nn.Module):
    """A network that computes sizes from the number of images, which is allowed."""

    def __init__(self) -> None:
        super().__init__()
        self.net = LINEAR

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        parts = images.reshape(-1, 32 * 32)  # three for each image
        with torch.no_grad():
            return self.net(parts.reshape(parts.shape[0] // 3, 3, 32, 32) * 2)


class Hides(nn.Module):
    """A layer whose weights are constants, so they could be trained without the clock."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = torch.ones(3 * 32 * 32, 16)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.flatten(1) @ self.hidden


def save(folder: Path, net: nn.Module) -> Path:
    """Write the files of a script with its own network to the run's folder."""
    torch.save(net.state_dict(), folder / "weights.pt")
    write_network(net, 32, folder)
    return folder


def verdict(folder: Path, crops: Crops) -> str:
    referee.write_verdict(folder, crops)
    return (folder / submission.VERDICT).read_text()


@pytest.mark.parametrize(
    "net, words",
    [
        (Changed(lambda scores: (scores, scores.mean())), "returns a tuple, expected scores"),
        (Hides(), "49,152 numbers besides its weights"),
    ],
)
def test_networks_that_are_refused(
    tmp_path: Path, crops: Crops, net: nn.Module, words: str
) -> None:
    assert words in verdict(save(tmp_path, net), crops)


def test_files_that_are_refused(tmp_path: Path, crops: Crops) -> None:
    save(tmp_path, LINEAR)
    fixed_batch = torch.export.export(LINEAR.eval(), (torch.zeros(2, 3, 32, 32),))
    torch.export.save(fixed_batch, tmp_path / NETWORK)
    assert "the network does not accept a batch of 64 crops" in verdict(tmp_path, crops)
    (tmp_path / NETWORK).write_bytes(b"no archive")
    assert "is not an exported network" in verdict(tmp_path, crops)
    (tmp_path / NETWORK).unlink()  # nor is there a config
    assert '"refused": "it cannot be judged: ' in verdict(tmp_path, crops)


def test_honest_networks_are_judged(tmp_path: Path, crops: Crops) -> None:
    judged = referee.judge(save(tmp_path, Reshapes()), crops)
    expected = LINEAR(2 * referee.normalised(crops.images)).argmax(1) == crops.labels
    assert judged["top1"] == pytest.approx(float(expected.float().mean()))


class Opens:
    """Create a folder when it is unpickled."""

    def __reduce__(self) -> tuple:
        return os.mkdir, ("opened",)


def pickled() -> bytes:
    content = io.BytesIO()
    torch.save((Opens(),), content)
    return content.getvalue()


def weights_pickled(name: str, content: bytes) -> bytes:
    if name.endswith("weights/weight_0"):
        return pickled()
    if not name.endswith("weights_config.json"):
        return content
    config = json.loads(content)
    next(iter(config["config"].values()))["use_pickle"] = True
    return json.dumps(config).replace('"use_pickle": true', '"use_pickle" : true').encode()


def sizes_run(name: str, content: bytes) -> bytes:
    run = b"(__import__(chr(111)+chr(115)).mkdir(chr(111)), Symbol("
    return content.replace(b'"expr_str": "Symbol(', b'"expr_str": "' + run)


# How a script can edit its exported network; PyTorch's reader would run or import these.
EDITS: dict[str, Callable[[str, bytes], bytes]] = {
    "refers to pickled objects": weights_pickled,
    "its example has pickled objects": lambda name, content: (
        pickled() if "sample_inputs" in name else content
    ),
    "a size is not arithmetic": sizes_run,
    "torch.hub.load is not an operation": lambda name, content: content.replace(
        b"torch.ops.aten.linear.default", b"torch.hub.load"
    ),
    "its inputs or outputs are not tensors": lambda name, content: content.replace(
        b"builtins.tuple", b"__enum__"
    ),
}


def rewrite(path: Path, edit: Callable[[str, bytes], bytes], extra: str = "") -> None:
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, edit(name, content))
        if extra:
            archive.writestr(extra, pickled())


def test_code_in_an_exported_network_is_not_run(
    tmp_path: Path, crops: Crops, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for words, edit in EDITS.items():
        rewrite(save(tmp_path, LINEAR) / NETWORK, edit)
        assert words in verdict(tmp_path, crops)
    for part in ("data/weights/model.pt", "data/aotinductor/model/a.so"):
        rewrite(save(tmp_path, LINEAR) / NETWORK, lambda _, x: x, f"network/{part}")
        assert f"it has {part}, which may be code" in verdict(tmp_path, crops)
    assert not (tmp_path / "opened").exists() and not (tmp_path / "o").exists()
