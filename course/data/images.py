"""From a file to the network's input: decode, crop, normalise."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import simplejpeg
import torch
from torch.nn.functional import interpolate
from torchvision import datasets
from torchvision.transforms import v2

from course.config import Config
from course.data.folders import DataError
from course.data.pixels import decode_rgb

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


class Files(datasets.ImageFolder):
    """Images from a folder per class, decoded on access; hidden files and folders are skipped.

    Of links to a folder that the class already has, or that contains it, none is followed.
    """

    def __init__(self, root: Path, view: v2.Transform | None = None) -> None:
        super().__init__(str(root), view, loader=open_image, is_valid_file=self._is_image)

    def find_classes(self, directory: str) -> tuple[list[str], dict[str, int]]:
        """Return the names of the class folders, sorted, and their numbers.

        A folder such as .ipynb_checkpoints would be class 0, and shift all labels by one.
        """
        names = [name for name in super().find_classes(directory)[0] if not name.startswith(".")]
        return names, {name: number for number, name in enumerate(names)}

    @staticmethod
    def make_dataset(
        directory: str,
        class_to_idx: dict[str, int],
        extensions: object = None,
        is_valid_file: Callable[[str], bool] | None = None,
        allow_empty: bool = False,
    ) -> list[tuple[str, int]]:
        """Return path and class of each image, as torchvision's function, but each folder once."""
        samples, empty = [], []
        for name, number in sorted(class_to_idx.items()):
            images = [path for path in _files_in(directory, name) if is_valid_file(path)]
            samples += [(path, number) for path in images]
            empty += [] if images else [name]
        if empty and not allow_empty:
            raise FileNotFoundError(f"Found no valid file for the classes {', '.join(empty)}")
        return samples

    def _is_image(self, path: str) -> bool:
        """Return whether this is an image that is not hidden, as macOS's ._x.JPEG would be."""
        return path.lower().endswith(datasets.folder.IMG_EXTENSIONS) and not _is_hidden(path)

    def __getitems__(self, indices: list[int]) -> list[tuple[torch.Tensor, int]]:
        """Return the images of a batch, for DataLoader."""
        with one_thread():
            return [self[index] for index in indices]


def _files_in(root: str, name: str) -> list[str]:
    """Return the files in a class's folder, sorted by folder and name.

    Raises:
        OSError: a folder cannot be read.
    """

    def refuse(error: OSError) -> None:
        raise error

    real = Path(os.path.realpath(root))
    visited = {str(folder) for folder in (real, *real.parents)}
    files = []
    for folder, inside, names in os.walk(os.path.join(root, name), True, refuse, followlinks=True):
        if (target := os.path.realpath(folder)) in visited:
            inside.clear()
            continue
        visited.add(target)
        inside[:] = sorted(path for path in inside if not _is_hidden(path))
        files.append((folder, sorted(names)))
    return [os.path.join(folder, file) for folder, names in sorted(files) for file in names]


def _is_hidden(path: str) -> bool:
    return os.path.basename(path).startswith(".")


def open_folder(
    root: Path, split: str, view: v2.Transform | None = None, kind: type[Files] = Files
) -> Files:
    """Return the images in root/split.

    Raises:
        DataError: the folder, a class or an image is missing; the message names it.
    """
    folder = root / split
    if not folder.is_dir():
        raise DataError(
            f"no folder {folder}: data_root must contain train/ and val/, each with one folder "
            f"a class, as ImageNet has it"
        )
    try:
        return kind(folder, view)
    except FileNotFoundError as error:
        # torchvision's message names the classes without images, or reports that there are none.
        raise DataError(f"{folder} is incomplete: {error}") from error
    except OSError as error:
        raise DataError(f"{folder} cannot be read: {error}") from error


def check_classes(root: Path, train: Sequence[str], val: Sequence[str]) -> None:
    """Raise DataError if the splits have different classes."""
    if train != val:
        differing = sorted({*train} ^ {*val})[:5]
        raise DataError(f"train/ and val/ in {root} differ in their class folders: {differing}")


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit PyTorch to one thread in this context."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def open_image(path: str) -> torch.Tensor:
    """Decode an image file to RGB bytes of shape (3, height, width).

    Raises:
        DataError: the file is truncated or no image; the message names it.
    """
    try:
        return decode_image(Path(path).read_bytes())
    except OSError as error:
        raise DataError(
            f"{path} cannot be decoded ({error}): copy this file again, or take it out"
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
