"""SSD300 on ResNet-50: finds objects of 80 kinds in images of 300 pixels.

Liu et al. 2016, "SSD: Single Shot MultiBox Detector" (arXiv:1512.02325), on the backbone of
NVIDIA's benchmark: ResNet-50 up to its third stage, without that stage's stride.
"""

from __future__ import annotations

import torch
import torchvision
from torch import nn
from torch.nn.functional import cross_entropy, smooth_l1_loss
from torchvision.models.detection.ssd import SSDHead

PX = 300
CLASSES = 81  # of COCO, with the background as number 0
CELL_BOXES = (4, 6, 6, 6, 4, 4)  # default boxes in a cell of each feature map
BOXES = 8732  # in all cells of maps with 38, 19, 10, 5, 3 and 1 cells per side
# Further feature maps: channels inside the block, its output channels, and its stride.
EXTRA = ((256, 512, 2), (256, 512, 2), (128, 256, 2), (128, 256, 1), (128, 256, 1))
NEGATIVES = 3  # boxes of the background that count, for each with an object


class SSD300(nn.Module):
    """Predict an object's box and kind for each of 8,732 default boxes.

    Takes images (N, 3, 300, 300); returns offsets (N, 8732, 4) and scores (N, 8732, classes).
    """

    def __init__(self) -> None:
        super().__init__()
        resnet = torchvision.models.get_model("resnet50", weights=None)
        first = resnet.layer3[0]  # without a stride it keeps the second stage's 38 × 38 cells
        strided = first.conv2 if hasattr(first, "conv3") else first.conv1
        strided.stride = first.downsample[0].stride = (1, 1)
        layers = (resnet.conv1, resnet.bn1, resnet.relu, resnet.maxpool)
        self.backbone = nn.Sequential(*layers, resnet.layer1, resnet.layer2, resnet.layer3)
        self.extra = nn.ModuleList()
        channels = [first.downsample[0].out_channels]
        for inner, outputs, stride in EXTRA:
            self.extra.append(_smaller_map(channels[-1], inner, outputs, stride))
            channels.append(outputs)
        self.head = SSDHead(channels, list(CELL_BOXES), CLASSES)

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        maps = [self.backbone(images)]
        for block in self.extra:
            maps.append(block(maps[-1]))
        outputs = self.head(maps)
        return outputs["bbox_regression"], outputs["cls_logits"]


def _smaller_map(channels: int, inner: int, outputs: int, stride: int) -> nn.Sequential:
    """Create the next feature map, with half as many cells per side or two fewer."""
    return nn.Sequential(
        nn.Conv2d(channels, inner, 1, bias=False),
        nn.BatchNorm2d(inner),
        nn.ReLU(inplace=True),
        nn.Conv2d(inner, outputs, 3, stride=stride, padding=int(stride == 2), bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


def loss(
    outputs: tuple[torch.Tensor, torch.Tensor], targets: tuple[torch.Tensor, torch.Tensor]
) -> torch.Tensor:
    """Compute the loss of offsets and scores (section 2.2 of the paper).

    Nearly all boxes are background. Only those with the largest loss count, three for each box with
    an object.
    """
    (offsets, scores), (target_offsets, labels) = outputs, targets
    has_object = labels > 0
    objects = has_object.sum(1)
    box_loss = smooth_l1_loss(offsets.float(), target_offsets, reduction="none").sum(2)
    class_loss = cross_entropy(scores.float().transpose(1, 2), labels, reduction="none")
    hardest = class_loss.detach().masked_fill(has_object, 0).argsort(1, descending=True)
    rank = hardest.argsort(1)
    counts = has_object | (rank < NEGATIVES * objects[:, None])
    total = (box_loss * has_object).sum(1) + (class_loss * counts).sum(1)
    return (total / objects.clamp(min=1)).mean()
