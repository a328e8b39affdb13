"""The review of a slow loop: the notebook's own code, with some of its mistakes fixed."""

import json
from collections.abc import Callable

import pytest

from course import check_written
from course.checks import discovery
from labs.gpu import review

NOTEBOOK = discovery.notebook_of("gpu")
PIXELS = "torch.tensor(images / 255).to(device).float()"
# By what the check says about it: the mistake, and a line without it.
FIXES = {
    "reach the device as float64": (PIXELS, "torch.tensor(images).to(device) / 255"),
    "the CPU makes 36,864 random numbers": (
        "torch.randn(pixels.shape).to(device)",
        "torch.randn(pixels.shape, device=device)",
    ),
    "in 12 of 12 batches of training, the host reads": ('print(f"{loss:.2f}", end=" ")', "pass"),
    "graphs of 11 steps are in memory": ("losses.append(loss)", "losses.append(loss.detach())"),
    "in 6 of 6 validation passes": ("def validate", "@torch.no_grad()\ndef validate"),
}


def loop(*changes: tuple[str, str]) -> Callable:
    """Return the notebook's `train`, after changes to its text."""
    cells = ["".join(cell["source"]) for cell in json.loads(NOTEBOOK.read_text())["cells"]]
    names = ("training_step", "train_epoch", "validate", "train")
    text = "\n\n".join(next(c for c in cells if c.startswith(f"def {name}(")) for name in names)
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    space = {"__name__": "notebook"}
    exec("import torch\nfrom torch.nn.functional import cross_entropy\n\n" + text, space)
    return space["train"]


def answer(*changes: tuple[str, str]) -> str:
    return repr(check_written("gpu.review", loop(*changes)))


def test_the_untouched_loop_is_right_and_has_five_mistakes() -> None:
    text = answer()
    assert "correct   passed" in text and "mistakes left: 5" in text
    table = review.observe_loop(loop())
    pixels = 2 * (6 * 16 + 16 + 16 + 5) * 192  # of two epochs; the last validation batch is small
    assert list(table["your loop"]) == [pixels, 36864, "12 of 12", 10, "6 of 6"]
    assert list(table["a careful loop"]) == [0, 0, "0 of 12", 0, "0 of 6"]


@pytest.mark.parametrize("words", FIXES)
def test_each_mistake_has_its_message(words: str) -> None:
    text = answer(*(fix for name, fix in FIXES.items() if name != words))
    assert "mistakes left: 1" in text and words in text


@pytest.mark.parametrize(
    "changes",
    [
        (),
        ((PIXELS, "torch.from_numpy(images).to(device, torch.float32).div(255)"),),
        ((PIXELS, "torch.tensor(images / 255, dtype=torch.float32).to(device)"),),
        (("torch.randn(pixels.shape).to(device)", "torch.randn_like(pixels)"),),
        (('print(f"{loss:.2f}", end=" ")', 'len(losses) % 3 or print(f"{loss:.2f}")'),),
        (("def validate", "@torch.inference_mode()\ndef validate"),),
    ],
)
def test_right_answers_pass(changes: tuple[tuple[str, str], ...]) -> None:
    changed = {old for old, _ in changes}
    rest = [fix for fix in FIXES.values() if fix[0] not in changed]
    checked = check_written("gpu.review", loop(*changes, *rest))
    assert checked.passed, checked


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("optimizer.zero_grad()", "pass", "is not what the original loop gives"),
        (" + 0.1 * noise", "", "is not what the original loop gives"),
        ("model.eval()", "pass", "is not what the original loop gives"),
        (
            "return float(loss), float(accuracy)",
            "return float(loss)",
            "expected 2 numbers, `loss, accuracy`",
        ),
        ("right / total", "right", "returns the accuracy"),
        ("losses.append(loss)", "losses.append(loss.item())", "of training, the host reads"),
        ("right += ", "right += 0 * model(pixels).max().item() + ", "of validation, the host"),
    ],
)
def test_wrong_answers_fail(old: str, new: str, words: str) -> None:
    rest = [fix for fix in FIXES.values() if fix[0] != old]
    assert words in answer((old, new), *rest)
