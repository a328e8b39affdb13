"""From a file to the network's input: decode, crop, and normalise."""

from __future__ import annotations

import functools
import io
import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import simplejpeg
import torch
from PIL import Image
from torch.nn.functional import interpolate
from torchvision import datasets
from torchvision.transforms import v2

from course.config import Config
from course.data import folders
from course.data.default_set import DataError

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's channels, in 0…1
SHOWN = 224 / 256  # of a validation image's shorter side


def train_view(cfg: Config) -> v2.Transform:
    """Random crop and flip: how a file becomes a training image."""
    random = [v2.RandAugment()] if cfg.randaugment == "cpu" else []
    return v2.Compose([RandomCrop(cfg.image_px), flipped, *random, *_to_floats(cfg)])


class RandomCrop:
    """A random part of an image, resized, as `v2.RandomResizedCrop` draws and makes it.

    What v2 does around it, for boxes and masks as well, takes a fifth of a core's time.
    """

    def __init__(self, image_px: int) -> None:
        self.draw = v2.RandomResizedCrop(image_px)
        self._side: torch.Tensor | None = None

    def grow_to(self, image_px: int) -> None:
        """Make images of another size from now on, in workers too.

        The first call must come before workers start: they share what later ones write.
        """
        if self._side is None:
            self._side = torch.tensor(image_px).share_memory_()
        self._side.fill_(image_px)

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        top, left, height, width = self.draw.make_params([image]).values()
        part = image[None, :, top : top + height, left : left + width]
        size = self.draw.size if self._side is None else [int(self._side)] * 2
        return interpolate(part, size, mode="bilinear", antialias=True)[0]


def flipped(image: torch.Tensor) -> torch.Tensor:
    """Every other image, from left to right."""
    return image.flip(-1) if torch.rand(()) < 0.5 else image


def epoch_px(cfg: Config, epoch: int) -> int:
    """The side of training crops in an epoch, counted from 0, in pixels.

    They grow from `cfg.start_px` in the first to `cfg.image_px` in the last, in equal steps that
    are rounded to multiples of 32: networks halve them five times.
    """
    if not cfg.start_px or epoch >= cfg.epochs - 1:
        return cfg.image_px
    grown = cfg.start_px + (cfg.image_px - cfg.start_px) * epoch / (cfg.epochs - 1)
    return min(32 * math.floor(grown / 32 + 0.5), cfg.image_px)


def val_view(cfg: Config) -> v2.Transform:
    """Resize, then the centre crop, as ImageNet results are reported."""
    resized = round(cfg.image_px / SHOWN)
    return v2.Compose([v2.Resize(resized), v2.CenterCrop(cfg.image_px), *_to_floats(cfg)])


def _to_floats(cfg: Config) -> list[v2.Transform]:
    if cfg.uint8:
        return []
    return [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]


def normalised(images: torch.Tensor) -> torch.Tensor:
    """Images as the network wants them; those that came as bytes are turned where they lie."""
    if images.dtype != torch.uint8:
        return images
    # Kept for each device: to copy them there in every step, the host would wait for the device.
    constants = _constants if type(images) is torch.Tensor else _constants.__wrapped__
    scale, shift = constants(images.device)
    return torch.addcmul(shift, images, scale)  # one pass over the batch


@functools.cache
def _constants(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """(byte / 255 - mean) / std, written as byte * scale + shift; each of shape (3, 1, 1)."""
    mean, std = (torch.tensor(each).view(3, 1, 1) for each in (MEAN, STD))
    return (1 / (255 * std)).to(device), (-mean / std).to(device)


class Files(datasets.ImageFolder):
    """Images of a folder for each class, decoded when they are asked for.

    Hidden files and folders are skipped, and their number is printed on standard error.
    """

    def __init__(self, root: Path, view: v2.Transform) -> None:
        self._hidden: list[str] = []
        super().__init__(
            str(root),
            view,
            loader=open_image,
            is_valid_file=lambda path: folders.is_image(path, str(root), self._hidden),
        )
        folders.report_hidden(root, self._hidden)

    def find_classes(self, directory: str) -> tuple[list[str], dict[str, int]]:
        """The class folders' names, sorted, and each one's number."""
        names = folders.class_names(directory, self._hidden)
        if not names:
            raise FileNotFoundError(f"no class folder in {directory}")
        return names, {name: number for number, name in enumerate(names)}

    def __getitems__(self, indices: list[int]) -> list[tuple[torch.Tensor, int]]:
        """The images of a batch, as DataLoader asks for them."""
        with one_thread():
            return [self[index] for index in indices]


@contextmanager
def one_thread() -> Iterator[None]:
    """What loads images takes one core, as each worker of a DataLoader does."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def open_image(path: str) -> torch.Tensor:
    """The image in RGB: bytes of shape (3, height, width).

    Raises:
        DataError: the file is truncated or no image; the message names it.
    """
    try:
        return opened(Path(path).read_bytes())
    except OSError as error:
        raise DataError(
            f"{path} cannot be decoded ({error}): copy this file again, or take it out"
        ) from error


def opened(data: bytes) -> torch.Tensor:
    """An image file's bytes as an RGB image, of shape (3, height, width).

    Raises:
        OSError: they are damaged, or no image.
    """
    with suppress(ValueError):  # no JPEG, or a damaged one: Pillow knows more, and says which
        return decoded(data)
    file = io.BytesIO(data)
    try:
        with Image.open(file) as image:
            return v2.functional.pil_to_tensor(image.convert("RGB"))
    except OSError:
        raise
    except Exception as error:  # a bomb, a chunk that is too large, …: each decoder has its own
        raise OSError(f"{type(error).__name__}: {error}") from error


def decoded(jpeg: bytes) -> torch.Tensor:
    """A JPEG file's bytes as an RGB image, of shape (3, height, width).

    Colours are stored at half the resolution, and enlarged here the fast way, by repetition.

    Raises:
        ValueError: they are damaged, or no JPEG in RGB or grey, or too large for Pillow, too.
    """
    height, width, space, _ = simplejpeg.decode_jpeg_header(jpeg)
    if space in ("CMYK", "YCCK") or height * width > 2 * Image.MAX_IMAGE_PIXELS:
        raise ValueError(f"a JPEG file in {space} of {width} x {height} pixels")
    rows = simplejpeg.decode_jpeg(jpeg, "RGB", fastupsample=True)
    return torch.from_numpy(rows).permute(2, 0, 1)
