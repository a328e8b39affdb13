"""Small versions of the course's networks, which small runs train in a tenth of the time."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torchvision.models import resnet

from course.training import models

WIDTH = 8  # channels of a ResNet's first convolution; ResNet-18 has 64
DEPTH = 4  # blocks of a transformer: enough for a pipeline of two ranks with two stages each
# On the right, names of networks that no test trains: here, half as deep as those on the left.
SHALLOW = {"resnet18": "resnet34", "vit_tiny_patch16_224": "coatnet_pico_rw_224"}


class Narrow(resnet.ResNet):
    """torchvision's ResNet with only two of its four layers, of one narrow block each."""

    def __init__(
        self,
        classes: int,
        blocks: Sequence[int] = (1, 0, 1, 0),
        block: type = resnet.BasicBlock,
    ) -> None:
        super().__init__(block, [*blocks], num_classes=1, zero_init_residual=True)
        self.conv1, self.bn1 = nn.Conv2d(3, WIDTH, 7, 2, 3, bias=False), nn.BatchNorm2d(WIDTH)
        nn.init.kaiming_normal_(self.conv1.weight, mode="fan_out", nonlinearity="relu")
        self.fc = nn.Linear(self.inplanes, classes)

    def _make_layer(
        self, block: type, planes: int, blocks: int, *rest: Any, **options: Any
    ) -> nn.Sequential:
        if planes == 64:  # the first one
            self.inplanes = WIDTH
        if not blocks:
            return nn.Sequential()
        return super()._make_layer(block, planes * WIDTH // 64, blocks, *rest, **options)


class Mlp(nn.Module):
    """Two linear layers with timm's names."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc1, self.act = nn.Linear(width, 4 * width), nn.GELU()
        self.fc2 = nn.Linear(4 * width, width)

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        return self.fc2(self.act(self.fc1(patches)))


class Block(nn.Module):
    """A transformer block: attention between patches, then an MLP for each patch.

    It has half as many weight tensors as usual, because each is updated, sent and observed
    separately.
    """

    def __init__(self, width: int, heads: int = 3) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = (nn.LayerNorm(width, elementwise_affine=False) for _ in "12")
        self.qkv, self.proj = (nn.Linear(width, n * width, bias=False) for n in (3, 1))
        self.mlp = Mlp(width)

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        """Map patches (N, patches, width) to the same shape."""
        parts = self.qkv(self.norm1(patches)).unflatten(-1, (3, self.heads, -1)).transpose(1, 3)
        attended = nn.functional.scaled_dot_product_attention(*parts.unbind(2))
        patches = patches + self.proj(attended.transpose(1, 2).flatten(2))
        return patches + self.mlp(self.norm2(patches))


class Transformer(nn.Module):
    """A small vision transformer: importing timm for one takes longer than training it.

    The layers before and after the blocks have timm's names as well.
    """

    def __init__(self, classes: int, image_px: int, blocks: int, width: int = 48) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(3, width, 16, 16)
        self.pos_embed = nn.Parameter(torch.randn(1, (image_px // 16) ** 2, width) / 50)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(blocks)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)
        nn.init.normal_(self.head.weight, std=0.02)  # all classes nearly equal at first, as in timm

    def forward_features(self, images: torch.Tensor) -> torch.Tensor:
        """Return all patches after the last block and its norm."""
        patches = self.patch_embed(images).flatten(2).transpose(1, 2) + self.pos_embed
        return self.norm(self.blocks(patches))

    def forward_head(self, patches: torch.Tensor) -> torch.Tensor:
        """Return each class's score, from the mean over all patches."""
        return self.head(patches.mean(1))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return each class's score."""
        return self.forward_head(self.forward_features(images))


_known = models.create


def create(name: str, classes: int, image_px: int = 224) -> nn.Module:
    """Replace `models.create`: resnet18 and timm's are small; SHALLOW's have half the blocks."""
    if not name.startswith("resnet"):
        return Transformer(classes, image_px, 2 if name in SHALLOW.values() else DEPTH)
    if name in SHALLOW.values():
        return Narrow(classes, (1, 0, 0, 0))
    return Narrow(classes) if name == "resnet18" else _known(name, classes, image_px)


def counting_backend(note: Callable[[int, bool], None]) -> Callable[..., Any]:
    """Return a backend of torch.compile that keeps PyTorch's own kernels, and counts their layers.

    Generating C++ takes a minute for each new network, and importing the code generator a second.

    Args:
        note: called whenever a graph computes in training, with its number of layers and whether
            this is the first time.
    """
    torch.compiler.reset()  # left by another script's network

    def compiled(graph: Any, inputs: Any, **_: Any) -> Callable[..., Any]:
        names = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
        layers = sum("conv2d" in name or "linear" in name for name in names)
        is_new = iter([True])

        def computed(*args: Any) -> Any:
            if torch.is_grad_enabled():
                note(layers, next(is_new, False))
            return graph.forward(*args)

        return computed

    return compiled
