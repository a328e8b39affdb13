"""The referee: what it cannot judge, and files that would do more than be judged."""

import io
import json
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from course.data import crop_set
from course.data.crop_set import Crops
from course.jobs.warm import kernels
from course.training.racing import network
from race import entry, referee, tracks

LINEAR = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 16))


@pytest.fixture(scope="module")
def few() -> Crops:
    return Crops(crop_set.ensure(), "val").first(64)


@pytest.mark.parametrize("way", ["late", "killed", "killed as a fork, too", "late as a fork"])
def test_a_referee_that_gives_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """The first run has a verdict already, and keeps it; the second hears why it has none."""
    judged, waiting = (tmp_path / name for name in ("judged", "waiting"))
    for folder in (judged, waiting):
        folder.mkdir()
    (judged / referee.VERDICT).write_text('{"top1": 0.5}')
    sleeper = [sys.executable, "-c", f"import time; time.sleep({30 * ('late' in way)})"]
    with subprocess.Popen(sleeper) as fork:
        started = fork if "fork" in way else None
        monkeypatch.setattr(kernels, "start", lambda *_: started)
        if "killed" in way:
            ended = subprocess.CompletedProcess([], -9)
            monkeypatch.setattr(subprocess, "run", lambda *_, **how: ended)
        else:
            monkeypatch.setattr(entry, "JUDGED_TIMES", 1e-3)
        entry._ask_referee([str(judged), str(waiting)], tracks.get("quick"))
        if way == "late as a fork":
            assert fork.wait() == -signal.SIGKILL
        fork.kill()
    assert json.loads((judged / referee.VERDICT).read_text()) == {"top1": 0.5}
    why = "ended by signal 9" if "killed" in way else "judging took longer than 0.12 s"
    assert why in json.loads((waiting / referee.VERDICT).read_text())["refused"]


class Answers(nn.Module):
    """A network whose answer is more than scores."""

    def __init__(self, how: Callable) -> None:
        super().__init__()
        self.net, self.how = LINEAR, how

    def forward(self, images: torch.Tensor) -> object:
        return self.how(self.net(images))


def left(folder: Path, net: nn.Module) -> Path:
    """A run's folder with what a script with a network of its own leaves."""
    torch.save(net.state_dict(), folder / "weights.pt")
    network.write(net, 32, folder)
    return folder


def verdict(folder: Path, crops: Crops) -> str:
    referee.write_verdict(folder, crops)
    return (folder / referee.VERDICT).read_text()


@pytest.mark.parametrize(
    "how, words",
    [
        (lambda scores: (scores, scores.mean()), "answers with a tuple, not with scores"),
        (lambda scores: {"logits": scores}, "answers with a dict, not with scores"),
    ],
)
def test_answers_that_are_no_scores_are_told(
    tmp_path: Path, few: Crops, how: Callable, words: str
) -> None:
    assert words in verdict(left(tmp_path, Answers(how)), few)


def test_a_network_for_a_fixed_number_of_images_is_told(tmp_path: Path, few: Crops) -> None:
    left(tmp_path, LINEAR)
    fixed = torch.export.export(LINEAR.eval(), (torch.zeros(2, 3, 32, 32),))
    torch.export.save(fixed, tmp_path / network.NETWORK)
    assert "the network does not take 64 crops at once" in verdict(tmp_path, few)


def test_whatever_cannot_be_judged_is_told(tmp_path: Path, few: Crops) -> None:
    torch.save(LINEAR.state_dict(), tmp_path / "weights.pt")  # and no config: a FileNotFoundError
    assert '"refused": "it cannot be judged: ' in verdict(tmp_path, few)


class Opens:
    """What runs when it is unpickled."""

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
    about = json.loads(content)
    next(iter(about["config"].values()))["use_pickle"] = True
    return json.dumps(about).replace('"use_pickle": true', '"use_pickle" : true').encode()


def sizes_run(name: str, content: bytes) -> bytes:
    run = b"(__import__(chr(111)+chr(115)).mkdir(chr(111)), Symbol("
    return content.replace(b'"expr_str": "Symbol(', b'"expr_str": "' + run)


# How a script may edit its exported network; what PyTorch's own reader would run or look up.
EDITS: dict[str, Callable[[str, bytes], bytes]] = {
    "tells of pickled objects": weights_pickled,
    "its example holds pickled objects": lambda name, content: (
        pickled() if "sample_inputs" in name else content
    ),
    "a size is no arithmetic": sizes_run,
    "torch.hub.load is no operation": lambda name, content: content.replace(
        b"torch.ops.aten.linear.default", b"torch.hub.load"
    ),
    "what it takes or answers is no tensor": lambda name, content: content.replace(
        b"builtins.tuple", b"__enum__"
    ),
}


def rewrite(path: Path, edit: Callable[[str, bytes], bytes], more: str = "") -> None:
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, edit(name, content))
        if more:
            archive.writestr(more, pickled())


@pytest.mark.parametrize("words", EDITS)
def test_code_in_an_exported_network_is_not_run(
    tmp_path: Path, few: Crops, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    rewrite(left(tmp_path, LINEAR) / network.NETWORK, EDITS[words])
    assert words in verdict(tmp_path, few)
    assert not (tmp_path / "opened").exists() and not (tmp_path / "o").exists()


@pytest.mark.parametrize("part", ["data/weights/model.pt", "data/aotinductor/model/a.so"])
def test_unknown_parts_of_an_exported_network_are_refused(
    tmp_path: Path, few: Crops, part: str
) -> None:
    rewrite(left(tmp_path, LINEAR) / network.NETWORK, lambda _, same: same, f"network/{part}")
    assert f"it holds {part}, which may be code" in verdict(tmp_path, few)


class Reshapes(nn.Module):
    """Sizes that are computed from the number of images: honest, and arithmetic."""

    def __init__(self) -> None:
        super().__init__()
        self.net = LINEAR

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        parts = images.reshape(-1, 32 * 32)  # three for each image
        with torch.no_grad():
            return self.net(parts.reshape(parts.shape[0] // 3, 3, 32, 32) * 2)


def test_honest_networks_are_still_judged(tmp_path: Path, few: Crops) -> None:
    judged = referee.judge(left(tmp_path, Reshapes()), few)
    expected = (LINEAR(2 * referee.normalised(few.images)).argmax(1) == few.labels).float().mean()
    assert judged["top1"] == pytest.approx(float(expected))
