"""timm's ResNet with training steps that run as kernels."""

from timm.models.resnet import ResNet

from fast_resnet.model import Kernels


class FastTimmResNet(Kernels, ResNet):
    """timm's network, with its weights."""

    library = "timm"
