"""SSD300 on ResNet-50: what finds objects of 80 kinds in an image of 300 pixels, and where.

Liu et al. 2016, "SSD: Single Shot MultiBox Detector" (arXiv:1512.02325), on the backbone that
NVIDIA's benchmark gives it: ResNet-50 up to its third stage, whose stride is left out.
"""

from __future__ import annotations

import torch
import torchvision
from torch import nn
from torch.nn.functional import cross_entropy, smooth_l1_loss
from torchvision.models.detection._utils import BoxCoder, SSDMatcher
from torchvision.models.detection.anchor_utils import DefaultBoxGenerator
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.ssd import SSDHead
from torchvision.ops import box_iou

PX = 300
CLASSES = 81  # of COCO, with the background as number 0
GRIDS = (38, 19, 10, 5, 3, 1)  # cells a side of the six feature maps
# Further maps: channels inside the block, channels that it gives, and its stride.
EXTRA = ((256, 512, 2), (256, 512, 2), (128, 256, 2), (128, 256, 1), (128, 256, 1))
SIDES = (0.07, 0.15, 0.33, 0.51, 0.69, 0.87, 1.05)  # of default boxes, as shares of the image
SHAPES = ([2], [2, 3], [2, 3], [2, 3], [2], [2])  # their aspect ratios, by map
CELLS_PX = [8, 16, 32, 64, 100, 300]
OVERLAP = 0.5  # of a default box and an object, or more: it is that object's
NEGATIVES = 3  # boxes of the background that count, for each that has an object
WEIGHTS = (10.0, 10.0, 5.0, 5.0)  # of centre and size, as they are learned


class SSD300(nn.Module):
    """For each of 8,732 default boxes: where the object is from there, and of which kind.

    Takes images (N, 3, 300, 300); gives the places (N, 8732, 4) and the scores (N, 8732, classes).
    """

    def __init__(self, classes: int = CLASSES, backbone: str = "resnet50") -> None:
        super().__init__()
        self.backbone, channels = _backbone(backbone)
        self.extra = nn.ModuleList()
        given = [channels]
        for inner, out, stride in EXTRA:
            self.extra.append(_smaller(given[-1], inner, out, stride))
            given.append(out)
        each = default_boxes_generator().num_anchors_per_location()
        self.head = SSDHead(given, each, classes)

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Places and scores of all default boxes."""
        maps = [self.backbone(images)]
        for block in self.extra:
            maps.append(block(maps[-1]))
        found = self.head(maps)
        return found["bbox_regression"], found["cls_logits"]


def _backbone(name: str) -> tuple[nn.Module, int]:
    """A ResNet up to its third stage, which keeps the second one's 38 × 38 cells; its channels."""
    whole = torchvision.models.get_model(name, weights=None)
    first = whole.layer3[0]
    (first.conv2 if hasattr(first, "conv3") else first.conv1).stride = (1, 1)
    first.downsample[0].stride = (1, 1)
    parts = [whole.conv1, whole.bn1, whole.relu, whole.maxpool]
    stages = [whole.layer1, whole.layer2, whole.layer3]
    return nn.Sequential(*parts, *stages), first.downsample[0].out_channels


def _smaller(channels: int, inner: int, out: int, stride: int) -> nn.Sequential:
    """The next feature map: half as many cells a side, or two fewer."""
    return nn.Sequential(
        nn.Conv2d(channels, inner, 1, bias=False),
        nn.BatchNorm2d(inner),
        nn.ReLU(inplace=True),
        nn.Conv2d(inner, out, 3, stride=stride, padding=int(stride == 2), bias=False),
        nn.BatchNorm2d(out),
        nn.ReLU(inplace=True),
    )


def default_boxes_generator() -> DefaultBoxGenerator:
    """torchvision's, with this network's sizes."""
    return DefaultBoxGenerator(list(SHAPES), scales=list(SIDES), steps=CELLS_PX)


def default_boxes() -> torch.Tensor:
    """The 8,732 boxes that the network starts from: left, top, right, bottom, in pixels."""
    image = ImageList(torch.empty(1, 3, PX, PX), [(PX, PX)])
    maps = [torch.empty(1, 1, side, side) for side in GRIDS]
    return default_boxes_generator()(image, maps)[0]


def encoded(
    boxes: torch.Tensor, labels: torch.Tensor, defaults: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """What an image's objects ask of each default box: places (8732, 4), labels (8732).

    A default box takes the object that it overlaps most, if by half; and each object has at least
    the box that overlaps it most. All others are background, 0.

    Args:
        boxes: of the objects, (n, 4) in pixels; labels: (n), from 1.
    """
    matched = SSDMatcher(OVERLAP)(box_iou(boxes, defaults))
    kind = torch.where(matched >= 0, labels[matched.clamp(min=0)], 0)
    return BoxCoder(WEIGHTS).encode_single(boxes[matched.clamp(min=0)], defaults), kind


def loss(
    found: tuple[torch.Tensor, torch.Tensor], wanted: tuple[torch.Tensor, torch.Tensor]
) -> torch.Tensor:
    """How far places and scores are from what is wanted (section 2.2 of the paper).

    Of the background's boxes, nearly all of them, those with the greatest loss count: three for
    each box with an object.
    """
    (places, scores), (right_places, labels) = found, wanted
    has_object = labels > 0
    objects = has_object.sum(1)
    off = smooth_l1_loss(places.float(), right_places, reduction="none").sum(2)
    wrong = cross_entropy(scores.float().transpose(1, 2), labels, reduction="none")
    hardest = wrong.detach().masked_fill(has_object, 0).argsort(1, descending=True)
    place_among = hardest.argsort(1)
    counts = has_object | (place_among < NEGATIVES * objects[:, None])
    total = (off * has_object).sum(1) + (wrong * counts).sum(1)
    return (total / objects.clamp(min=1)).mean()
