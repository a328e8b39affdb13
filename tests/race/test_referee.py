"""The referee: networks of one's own that it cannot judge, and files that would do more than that."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from course.data import crop_set
from course.data.crop_set import Crops
from course.race import referee
from course.training.racing import network

LINEAR = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 16))


@pytest.fixture(scope="module")
def few() -> Crops:
    return Crops(crop_set.ensure(), "val").first(64)


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
