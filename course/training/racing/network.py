"""A network of one's own as a file: its operations without its weights' values."""

from __future__ import annotations

import copy
import io
from pathlib import Path

import torch
from torch import nn

from course.runs.files import whole_file

NETWORK = "network.pt2"
IMAGES = 2  # in the example: with one, PyTorch would take it that there is always one


def write(net: nn.Module, image_px: int, folder: Path) -> None:
    """Write what the network computes in evaluation, for any number of images.

    `torch.export` follows it once, in fp32 on the host, with images as `normalised` gives them.

    Raises:
        torch.export errors: the network does what cannot be followed, for instance looks at values.
    """
    twin = copy.deepcopy(net).to("cpu", torch.float32).eval()
    images = torch.zeros(IMAGES, 3, image_px, image_px)
    with torch.no_grad():
        batch = torch.export.Dim("batch", min=1, max=65_536)
        program = torch.export.export(twin, (images,), dynamic_shapes=({0: batch},))
    whole = io.BytesIO()  # on a full disk, PyTorch's own writer would abort the process
    torch.export.save(program, whole)
    with whole_file(folder / NETWORK) as file:
        file.write(whole.getbuffer())
