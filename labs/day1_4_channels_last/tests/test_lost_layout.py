"""Wrong and unusual answers to the build: each wrong one gets its own explanation."""

import pytest
import torch
from torch import nn

from course import check_written
from course.training.precision import channels_last
from labs.day1_4_channels_last import lost_layout


def names_of_lost(model: nn.Module, images: torch.Tensor, is_lost, runs: bool = True) -> list[str]:
    """Return the modules whose output is lost, in the order of their execution."""
    names = {module: name for name, module in model.named_modules()}
    lost: list[str] = []

    def note(module: nn.Module, inputs: tuple, output: torch.Tensor) -> None:
        if is_lost(output):
            lost.append(names[module])

    hooks = [module.register_forward_hook(note) for module in names]
    if runs:
        model(images)
    for hook in hooks:
        hook.remove()
    return lost


def is_nchw(output: torch.Tensor) -> bool:
    kept = output.is_contiguous(memory_format=torch.channels_last)
    return output.dim() == 4 and not kept


def default_order(model, images):
    lost = names_of_lost(model, images, lambda output: not output.is_contiguous())
    return lost[0] if lost else None


def any_dimension(model, images):
    last = torch.channels_last
    lost = names_of_lost(model, images, lambda o: not o.is_contiguous(memory_format=last))
    return lost[0] if lost else None


def strides_of_one_pixel(model, images):
    lost = names_of_lost(model, images, lambda o: o.dim() == 4 and o.is_contiguous())
    return lost[0] if lost else None


def outermost(model, images):
    lost = names_of_lost(model, images, is_nchw)
    return min(lost, default=None)


def never_run(model, images):
    lost = names_of_lost(model, images, is_nchw, runs=False)
    return lost[0] if lost else None


def all_names(model, images):
    return names_of_lost(model, images, is_nchw)


def keeps_hooks(model, images):
    lost = []
    for name, module in model.named_modules():

        def note(module, inputs, output, name=name):
            if is_nchw(output):
                lost.append(name)

        module.register_forward_hook(note)
    model(images)
    return lost[0] if lost else None


def replaces_output(model, images):
    hooks = [model.fc.register_forward_hook(lambda module, inputs, output: output * 0)]
    answer = lost_layout.first_lost(model, images)
    hooks.clear()
    return answer


def global_hook(model, images):
    """An unusual right answer: one hook for all modules, with their names in a table."""
    names, lost = {module: name for name, module in model.named_modules()}, []

    def note(module, inputs, output):
        if is_nchw(output):
            lost.append(names[module])

    with torch.no_grad():
        hook = nn.modules.module.register_module_forward_hook(note)
        model(images)
        hook.remove()
    return next(iter(lost), None)


@pytest.mark.parametrize("function", [lost_layout.first_lost, global_hook])
def test_right_answers(function) -> None:
    assert check_written("layout.first_lost", function).passed


@pytest.mark.parametrize(
    "function, words",
    [
        (default_order, "is_contiguous() without an argument tests for NCHW"),
        (any_dimension, "fc: its output has 2 dimensions"),
        (strides_of_one_pixel, "avgpool: its output has one pixel per channel"),
        (outermost, "'layer1' contains 'layer1.1'"),
        (never_run, "call model(images)"),
        (all_names, "Return one name, or None"),
        (keeps_hooks, "call remove() on each"),
        (replaces_output, "a hook that returns a value replaces"),
    ],
)
def test_wrong_answers_are_explained(function, words: str) -> None:
    checked = check_written("layout.first_lost", function)
    assert not checked.passed and checked.function is lost_layout.first_lost
    assert words in " ".join(repr(checked).split())


def test_each_number_has_a_place() -> None:
    images = channels_last(torch.randn(1, 3, 64, 64))
    found = {lost_layout.first_lost(lost_layout.planted(number), images) for number in range(6)}
    assert len(found) > 3 and found < set(lost_layout.places(lost_layout.planted(0)))
