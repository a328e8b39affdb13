"""Networks that the kernels do not support are refused, or run torchvision's code."""

from typing import Any

import pytest
import torch
from torch import nn
from torchvision.models import resnet18, resnet50, resnext50_32x4d, vit_b_16, wide_resnet50_2

from fast_resnet import convert, fallback_reason, last_conversion, unsupported_reason
from fast_resnet.model import is_interpreted, wrong_images, wrong_weights


def on_meta(make: Any) -> nn.Module:
    with torch.device("meta"):
        return make()


@pytest.mark.parametrize(
    "make, reason",
    [
        (resnet18, "layer1.0 is BasicBlock, not a Bottleneck"),
        (vit_b_16, "VisionTransformer is not a ResNet"),
        (lambda: nn.SyncBatchNorm.convert_sync_batchnorm(resnet50()), "bn1 is SyncBatchNorm"),
        (
            lambda: resnet50(replace_stride_with_dilation=[False, False, True]),
            r"layer4.1.conv2 has dilation=\(2, 2\)",
        ),
    ],
)
def test_an_unsupported_network_is_refused_with_the_reason(make: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=f"{reason}.* It converts torchvision's and timm's"):
        convert(on_meta(make))


@pytest.mark.parametrize(
    "name, reason",
    [
        ("resnet50.a1_in1k", ""),
        ("wide_resnet50_2", ""),
        ("resnext50_32x4d", ""),
        ("resnet26", ""),
        ("resnet18", "layer1.0 is BasicBlock, not a Bottleneck"),
        ("resnet50d", "conv1 is Sequential, not Conv2d"),
        ("resnetblur50", "maxpool is Sequential, not MaxPool2d"),
        ("resnet50_gn", "bn1 is GroupNorm, not BatchNorm2d"),
        ("seresnet50", "layer1.0.se is SEModule, which torchvision's ResNets lack"),
        ("ecaresnet50t", "conv1 is Sequential, not Conv2d"),
    ],
)
def test_timms_networks_are_converted_or_refused_by_name(name: str, reason: str) -> None:
    timm = pytest.importorskip("timm")
    assert unsupported_reason(on_meta(lambda: timm.create_model(name))) == reason


@pytest.mark.parametrize(
    "settings, reason",
    [
        ({"drop_path_rate": 0.05}, "layer1.1.drop_path is DropPath"),
        ({"drop_block_rate": 0.1}, "layer3.0.drop_block is DropBlock2d"),
        ({"drop_rate": 0.1}, "drop_rate is 0.1"),
        ({"act_layer": "silu"}, "act1 is SiLU, not ReLU"),
        ({"global_pool": "max"}, "global_pool is AdaptiveMaxPool2d, not AdaptiveAvgPool2d"),
        ({"num_classes": 0}, "fc is Identity, not Linear"),
        ({"output_stride": 8}, "layer3.1.conv2 has dilation=(2, 2), not 1"),
    ],
)
def test_timms_settings_are_refused_by_name(settings: dict[str, Any], reason: str) -> None:
    timm = pytest.importorskip("timm")
    net = on_meta(lambda: timm.create_model("resnet50", **settings))
    assert unsupported_reason(net).startswith(reason)


def test_another_pooling_in_timms_network_is_refused() -> None:
    timm = pytest.importorskip("timm")
    net = on_meta(lambda: timm.create_model("resnet50"))
    net.global_pool = nn.AdaptiveAvgPool2d(1)
    assert unsupported_reason(net) == "global_pool does not flatten"


def test_a_block_that_is_used_twice_or_begins_with_a_stride_is_refused() -> None:
    net = on_meta(resnet50)
    net.layer2[2] = net.layer2[1]
    assert unsupported_reason(net) == "a block is used twice"
    net = on_meta(resnet50)
    net.layer1[0].conv2.stride = net.layer1[0].downsample[0].stride = (2, 2)
    assert unsupported_reason(net) == "layer1.0.conv2 has a stride"


def test_a_wider_stem_is_refused_because_its_kernel_takes_powers_of_two() -> None:
    net = on_meta(resnet50)
    net.conv1 = nn.Conv2d(3, 384, 7, 2, 3, bias=False, device="meta")
    assert unsupported_reason(net) == "conv1 has out_channels=384, not 64"


@pytest.mark.skipif(is_interpreted(), reason="the interpreter takes any number of channels")
def test_other_numbers_of_channels_are_left_to_torchvision() -> None:
    assert wrong_weights(on_meta(resnet50)) == ""
    narrow = on_meta(lambda: resnet50(width_per_group=48))
    assert wrong_weights(narrow).startswith("a layer has 48 channels")


def test_a_batch_whose_largest_tensor_needs_longer_indices_is_left_to_torchvision() -> None:
    """In a ResNet eight times as wide, this is layer2.0.conv1's output, and not the stem's."""
    images = torch.empty(700, 3, 224, 224, device="meta")
    wide, reason = on_meta(lambda: resnet50(width_per_group=512)), "too large for 32-bit indices"
    assert reason in wrong_images(wide, images, torch.float16)
    assert wrong_images(wide, images[:300], torch.float16) == ""
    assert wrong_images(on_meta(resnet50), images, torch.float16) == ""
    assert reason in wrong_images(on_meta(resnet50), images.repeat(2, 1, 1, 1), torch.float16)


@pytest.mark.parametrize("make", [resnext50_32x4d, wide_resnet50_2])
def test_other_bottlenecks_are_known(make: Any) -> None:
    assert unsupported_reason(on_meta(make)) == ""


def test_a_subclass_is_refused_because_it_would_lose_its_methods() -> None:
    class Mine(type(on_meta(resnet50))):
        pass

    mine = on_meta(resnet50)
    mine.__class__ = Mine
    assert unsupported_reason(mine) == "Mine is a subclass of ResNet, and would lose its methods"


@pytest.mark.skipif(is_interpreted(), reason="the interpreter computes on any device")
def test_without_a_gpu_torchvisions_code_trains_with_one_warning() -> None:
    net = convert(resnet50(num_classes=4))
    reason = "the kernels need an NVIDIA GPU, and the device is cpu"
    assert fallback_reason(net, torch.float16) == reason
    images = torch.randn(2, 3, 32, 32)
    with pytest.warns(UserWarning, match=reason) as caught:
        net(images), net(images), net.eval()(images)
    assert len(caught) == 1
    assert last_conversion() == {"form": "torchvision", "why": reason}
