"""Save the computation of an entry's own network as a file, without the values of its weights."""

from __future__ import annotations

import copy
import io
from pathlib import Path

import torch
from torch import nn

from course.runs.files import whole_file

NETWORK = "network.pt2"
IMAGES = 2  # in the example: PyTorch treats a batch of one image as a constant


def write(net: nn.Module, image_px: int, folder: Path) -> None:
    """Write what the network computes in evaluation, for any number of images.

    `torch.export` traces it once, in fp32 on the host, with images as `normalised` returns them.

    Raises:
        torch.export errors: the network cannot be traced, for instance if it reads values.
    """
    network = copy.deepcopy(net).to("cpu", torch.float32).eval()
    images = torch.zeros(IMAGES, 3, image_px, image_px)
    with torch.no_grad():
        batch = torch.export.Dim("batch", min=1, max=65_536)
        program = torch.export.export(network, (images,), dynamic_shapes=({0: batch},))
    buffer = io.BytesIO()  # on a full disk, PyTorch's own writer would abort the process
    torch.export.save(program, buffer)
    with whole_file(folder / NETWORK) as file:
        file.write(buffer.getbuffer())
