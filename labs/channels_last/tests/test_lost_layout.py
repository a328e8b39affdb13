"""The build: an unusual right answer passes, and each number plants a different place.

The notebook's cell and its wrong answers are in tests/checks/test_written.py.
"""

from collections import OrderedDict

import torch
from torch import nn

from course import check_written
from course.training.precision import channels_last
from labs.channels_last import lost_layout


def one_hook_for_all(model, images):
    names, lost = {module: name for name, module in model.named_modules()}, []

    def note(module, inputs, output):
        kept = output.is_contiguous(memory_format=torch.channels_last)
        if output.dim() == 4 and not kept:
            lost.append(names[module])

    hook = nn.modules.module.register_module_forward_hook(note)
    with torch.no_grad():
        model(images)
    hook.remove()
    return next(iter(lost), None)


def test_an_unusual_right_answer() -> None:
    assert check_written("layout.first_lost", one_hook_for_all).passed


def test_a_hook_of_all_modules_is_removed(monkeypatch) -> None:
    hooks = OrderedDict()  # so that what the function leaves ends with this test
    monkeypatch.setattr(nn.modules.module, "_global_forward_hooks", hooks)

    def keeps_its_hook(model, images):
        lost = lost_layout.first_lost(model, images)
        nn.modules.module.register_module_forward_hook(lambda *_: None)
        return lost

    checked = check_written("layout.first_lost", keeps_its_hook)
    assert checked.failed and "still has 1 of your hooks" in repr(checked)


def test_each_number_has_a_place() -> None:
    images = channels_last(torch.randn(1, 3, 64, 64))
    found = {lost_layout.first_lost(lost_layout.planted(number), images) for number in range(6)}
    assert len(found) > 3 and found < set(lost_layout.places(lost_layout.planted(0)))
