"""From a file to the network's input: decode, crop, normalise."""

from __future__ import annotations

import functools
import math
from contextlib import suppress
from pathlib import Path

import simplejpeg
import torch
from torch.nn.functional import interpolate
from torchvision.transforms import v2

from course.config import Config
from course.data import folders
from course.data.folders import DataError
from course.data.listing import Listing, list_folder, list_shards
from course.data.pixels import decode_rgb
from trainspeed.resources import one_thread

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's channels, in 0…1


def train_view(cfg: Config) -> v2.Transform:
    """Return the transform of training images: random crop and flip, and an augmentation."""
    random: list[v2.Transform] = [v2.RandAugment()] if cfg.randaugment == "cpu" else []
    if cfg.auto_augment:
        random = [v2.TrivialAugmentWide(interpolation=v2.InterpolationMode.BILINEAR)]
    return v2.Compose([RandomCrop(cfg.image_px), flip_randomly, *random, *_to_floats(cfg)])


class RandomCrop:
    """Crops and resizes as `v2.RandomResizedCrop`, without v2's overhead.

    v2 also supports boxes and masks, which takes a fifth of a core's time.
    """

    def __init__(self, image_px: int) -> None:
        self.draw = v2.RandomResizedCrop(image_px)
        self._side: torch.Tensor | None = None

    def grow_to(self, image_px: int) -> None:
        """Change the size of the crops, in workers, too.

        Call it before the workers start: they share the memory that later calls write to.
        """
        if self._side is None:
            self._side = torch.tensor(image_px).share_memory_()
        self._side.fill_(image_px)

    @property
    def image_px(self) -> int:
        """The side of the next crops."""
        return self.draw.size[0] if self._side is None else int(self._side)

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        top, left, height, width = self.draw.make_params([image]).values()
        part = image[None, :, top : top + height, left : left + width]
        size = [self.image_px] * 2
        return interpolate(part, size, mode="bilinear", antialias=True)[0]


def flip_randomly(image: torch.Tensor) -> torch.Tensor:
    """Mirror every second image, on average."""
    return image.flip(-1) if torch.rand(()) < 0.5 else image


def epoch_px(cfg: Config, epoch: int) -> int:
    """Return the side of training crops in an epoch, counted from 0.

    It grows from `cfg.start_px` in epoch `cfg.start_ramp` to `cfg.image_px` in `cfg.end_ramp`, or
    else in the last epoch, in equal steps that are rounded to multiples of 32, because networks
    halve images five times.
    """
    end = cfg.end_ramp or cfg.epochs - 1
    if not cfg.start_px or epoch >= end:
        return cfg.image_px
    share = max(0, epoch - cfg.start_ramp) / (end - cfg.start_ramp)
    side = cfg.start_px + (cfg.image_px - cfg.start_px) * share
    return min(32 * math.floor(side / 32 + 0.5), cfg.image_px)


def val_px(cfg: Config) -> int:
    """Return the side of validation crops."""
    return cfg.val_px or cfg.image_px


def val_view(cfg: Config) -> v2.Transform:
    """Return the transform of validation images: resize and centre crop, as usual for ImageNet."""
    side = round(val_px(cfg) / cfg.crop_pct)
    return v2.Compose([v2.Resize(side), v2.CenterCrop(val_px(cfg)), *_to_floats(cfg)])


def _to_floats(cfg: Config) -> list[v2.Transform]:
    if cfg.uint8:
        return []
    return [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]


def normalised(images: torch.Tensor) -> torch.Tensor:
    """Normalise images that are bytes, on their device; return floats unchanged."""
    if images.dtype != torch.uint8:
        return images
    # Cached, because copying the constants in each step would make the host wait for the device.
    constants = _constants if type(images) is torch.Tensor else _constants.__wrapped__
    scale, shift = constants(images.device)
    return torch.addcmul(shift, images, scale)  # one pass over the batch


@functools.cache
def _constants(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scale and shift, shape (3, 1, 1): (byte / 255 - mean) / std = byte·scale + shift."""
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))
    return (1 / (255 * std)).to(device), (-mean / std).to(device)


class Files:
    """Images of a split, decoded on access.

    Args:
        samples: where they are, and their classes.
        view: their transform.
    """

    def __init__(self, samples: Listing, view: v2.Transform | None = None) -> None:
        self.samples, self.classes, self.transform = samples, samples.classes, view

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        place, label, data = self.read(index)
        image = decode_named(data, place)
        return (self.transform(image) if self.transform else image), label

    def __getitems__(self, indices: list[int]) -> list[tuple[torch.Tensor, int]]:
        """Return the images of a batch, for DataLoader."""
        with one_thread():
            return [self[index] for index in indices]

    def read(self, index: int) -> tuple[str, int, bytes]:
        """Return an image's place, its class, and the bytes of its file.

        Raises:
            DataError: it cannot be read; the message names it.
        """
        place, label = self.samples[index]
        try:
            return place, label, self.samples.read(index)
        except OSError as error:
            raise DataError(f"{place} cannot be read: {error}") from error


def open_folder(
    root: Path, split: str, view: v2.Transform | None = None, kind: type[Files] = Files
) -> Files:
    """Return the images of a split in a folder with train/ and val/, or in a folder of shards.

    Raises:
        DataError: the folder, a class or an image is missing; the message names it.
    """
    shards = folders.read_index(root).get("kind") == "shards"
    return kind(list_shards(root, split) if shards else list_folder(root, split), view)


def open_image(path: str) -> torch.Tensor:
    """Decode an image file to RGB bytes of shape (3, height, width).

    Raises:
        DataError: the file is truncated or no image; the message names it.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    return decode_named(data, path)


def decode_named(data: bytes, place: str) -> torch.Tensor:
    """Decode the image file at `place` to RGB bytes of shape (3, height, width).

    Raises:
        DataError: it is truncated or no image; the message names it.
    """
    try:
        return decode_image(data)
    except OSError as error:
        raise DataError(
            f"{place} cannot be decoded ({error}): copy this file again, or take it out"
        ) from error


def decode_image(data: bytes) -> torch.Tensor:
    """Decode an image of any format to RGB bytes of shape (3, height, width).

    Raises:
        OSError: as `decode_rgb`.
    """
    with suppress(ValueError):  # not a JPEG, or damaged: Pillow reports the cause
        return decode_jpeg(data)
    return v2.functional.pil_to_tensor(decode_rgb(data))


def decode_jpeg(jpeg: bytes) -> torch.Tensor:
    """Decode a JPEG to RGB bytes of shape (3, height, width).

    Colours are stored at half the resolution, and are enlarged the fast way, by repetition.

    Raises:
        ValueError: the data are damaged, or not a JPEG in RGB or grey.
    """
    _, _, space, _ = simplejpeg.decode_jpeg_header(jpeg)
    if space in ("CMYK", "YCCK"):
        raise ValueError(f"a JPEG file in {space}")
    rows = simplejpeg.decode_jpeg(jpeg, "RGB", fastupsample=True)
    return torch.from_numpy(rows).permute(2, 0, 1)
