"""What the algebra cannot do is refused with the reason; the form that runs says why it does."""

from typing import Any

import pytest
import torch
from cases import for_all
from torch import nn
from torchvision.models import resnet18, resnet50, resnext50_32x4d, vit_b_16, wide_resnet50_2

from course.config import rung
from course.training.algebra import convert, forms
from course.training.evidence import setup


def on_meta(make: Any) -> nn.Module:
    with torch.device("meta"):
        return make()


@for_all(
    ("make", "told"),
    [
        (resnet18, "its blocks are BasicBlock"),
        (resnext50_32x4d, "its 3x3 convolutions are in 32 groups"),
        (wide_resnet50_2, "another factor than 4"),
        (vit_b_16, "VisionTransformer is no ResNet"),
        (lambda: nn.SyncBatchNorm.convert_sync_batchnorm(resnet50()), "SyncBatchNorm takes its"),
    ],
)
def test_another_network_is_refused_with_the_reason(make: Any, told: str) -> None:
    with pytest.raises(ValueError, match=f"{told}.* It is for torchvision's resnet50"):
        convert(on_meta(make), rung("algebra"))


@for_all(
    ("changes", "told"),
    [
        ({"model": "resnet18"}, "resnet18 do not end .* choose resnet50, resnet101, resnet152"),
        ({"compile": "default"}, 'both replace the step: set compile=""'),
        ({"sync_batchnorm": True}, "set sync_batchnorm=False"),
        ({"micro_batch": 8}, "known to train.py alone"),
        ({"save_every": 4}, "train_restarted.py.* does not know it"),
        ({"tensor": 2}, "train_parallel.py.* does not know it"),
    ],
)
def test_a_config_that_cannot_be_is_refused(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        rung("algebra", **changes)


@pytest.mark.parametrize("model", ["resnet101", "resnet152"])
def test_deeper_networks_are_known(model: str) -> None:
    assert rung("algebra", model=model).algebra


def test_the_form_is_said_and_recorded(capsys: pytest.CaptureFixture) -> None:
    cfg = rung("algebra")
    convert(on_meta(resnet50), cfg)
    assert capsys.readouterr().out == (
        "algebra in plain PyTorch, equal but slow: the kernels are for an NVIDIA GPU, and this "
        "trains on meta\n"
    )
    assert setup.algebra(cfg) == {"algebra": forms.last()}
    assert forms.last()["form"] == "plain"
    assert setup.algebra(rung("fused")) == {}
