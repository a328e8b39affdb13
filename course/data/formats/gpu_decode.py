"""JPEG files that the GPU decodes and crops: workers only read them, a thread starts the GPU."""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn.functional import interpolate
from torch.utils.data import DataLoader

from course.config import Config
from course.data.folders import DataError
from course.data.images import Files, decode_named, val_px
from trainspeed.resources import one_thread

AHEAD = 4  # batches that are decoded before a step needs them
AREA, ASPECT = (0.08, 1.0), (3 / 4, 4 / 3)  # of a training crop, as in RandomResizedCrop
TRIES = 10
MIN_COLUMNS = 256  # of one program of the kernel; a power of two, as Triton requires
Batch = tuple[torch.Tensor, torch.Tensor]


class Encoded(Files):
    """Images as path, the bytes of the file, of shape (length,), class, and a seed for a crop."""

    def __getitem__(self, index: int) -> tuple[str, torch.Tensor, int, int]:
        path, label, data = self.read(index)
        if not data:
            raise DataError(f"{path} cannot be read: it is empty")
        seed = int(torch.randint(2**62, ()))
        return path, torch.frombuffer(bytearray(data), dtype=torch.uint8), label, seed


@dataclass(frozen=True)
class Jpegs:
    """The files of a batch, concatenated in one tensor."""

    data: torch.Tensor  # uint8 of shape (bytes of all files,)
    lengths: list[int]
    paths: list[str]
    seed: int  # of the crops, so that they do not depend on the order of threads

    def decode_on_cpu(self, index: int) -> torch.Tensor:
        """Decode one file to bytes of shape (3, height, width)."""
        begin = sum(self.lengths[:index])
        data = self.data[begin : begin + self.lengths[index]]
        return decode_named(data.numpy().tobytes(), self.paths[index])

    def pin_memory(self) -> Jpegs:
        """Copy the files to page-locked memory; DataLoader calls it."""
        return replace(self, data=self.data.pin_memory())


def collate(batch: list[tuple[str, torch.Tensor, int, int]]) -> tuple[Jpegs, torch.Tensor]:
    """Collate files into a batch, for a DataLoader; the first one's seed is the batch's."""
    paths, files, labels, seeds = zip(*batch)
    return Jpegs(torch.cat(files), [*map(len, files)], [*paths], seeds[0]), torch.tensor(labels)


class Decoded:
    """Batches from a DataLoader of `Encoded` files, decoded and cropped on the device.

    A thread decodes the next batches in its own stream while a step computes. Without a GPU that
    decodes (only NVIDIA's do), the CPU decodes step by step, and the log says so.

    Args:
        train: random crops and flips; otherwise the centre of each image.
    """

    def __init__(self, batches: DataLoader, cfg: Config, device: torch.device, train: bool) -> None:
        self.by_gpu = device.type == "cuda" and bool(torch.version.cuda)
        if self.by_gpu and device.index is None:  # a new thread would use device 0
            device = torch.device("cuda", torch.cuda.current_device())
        self.batches, self.device, self.train = batches, device, train
        self.val_px, self.crop_pct = val_px(cfg), cfg.crop_pct
        self._stream: torch.cuda.Stream | None = None
        if train and not self.by_gpu:
            print(f"{device.type} decodes no JPEG files: the processor does", file=sys.stderr)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.__dict__["batches"], name)  # the DataLoader's settings

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Batch]:
        return self._decode_ahead() if self.by_gpu else map(self._decode_on_cpu, self.batches)

    def _decode_on_cpu(self, batch: tuple[Jpegs, torch.Tensor]) -> Batch:
        jpegs, labels = batch
        with one_thread():
            images = [jpegs.decode_on_cpu(index) for index in range(len(jpegs.paths))]
            return self._crop(images, jpegs.seed).to(self.device), labels

    def _decode_ahead(self) -> Iterator[Batch]:
        waiting: deque[Future] = deque()
        pool = ThreadPoolExecutor(1, "decode")
        try:
            for batch in self.batches:
                waiting.append(pool.submit(self._decode_in_thread, *batch))
                if len(waiting) > AHEAD:
                    yield self._receive(waiting.popleft())
            while waiting:
                yield self._receive(waiting.popleft())
        finally:  # also if the epoch ends before the batches do
            pool.shutdown(cancel_futures=True)

    def _decode_in_thread(self, jpegs: Jpegs, labels: torch.Tensor) -> Batch:
        torch.cuda.set_device(self.device)  # per thread
        self._stream = self._stream or torch.cuda.Stream(self.device)
        with torch.cuda.stream(self._stream):
            batch = self._crop(decode_on_gpu(jpegs, self.device), jpegs.seed)
        self._stream.synchronize()
        return batch, labels

    def _receive(self, future: Future) -> Batch:
        batch, labels = future.result()
        # The other stream must not reuse this memory before the current stream is done with it.
        batch.record_stream(torch.cuda.current_stream(self.device))
        return batch, labels

    def _crop(self, images: Sequence[torch.Tensor], seed: int) -> torch.Tensor:
        sizes = torch.tensor([image.shape[1:] for image in images])
        random = torch.Generator().manual_seed(seed)
        if self.train:
            image_px = self.batches.dataset.transform.transforms[0].image_px  # it may grow
            boxes = random_boxes(sizes, random)
            flips = torch.rand(len(images), generator=random) < 0.5
        else:
            image_px = self.val_px
            boxes, flips = centre_boxes(sizes, self.crop_pct), torch.zeros(len(images)).bool()
        return crop_and_resize(images, boxes, flips, image_px)


def decode_on_gpu(jpegs: Jpegs, device: torch.device) -> list[torch.Tensor]:
    """Decode the images on a GPU to bytes of shape (3, height, width).

    The CPU decodes files that the GPU does not support, such as CMYK, and the log names them.

    Raises:
        DataError: a file is damaged (the message names it), or the GPU decodes none.
        torch.OutOfMemoryError: the device has no memory left.
    """
    from torchcodec.decoders import decode_jpeg

    def decode(data: Any) -> Any:
        try:
            return decode_jpeg(data, device=device)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            return error

    files = [*jpegs.data.split(jpegs.lengths)]
    images = decode(files)
    if not isinstance(images, RuntimeError):
        return images
    results = [decode(file) for file in files]
    if len(files) > 1 and all(isinstance(result, RuntimeError) for result in results):
        raise DataError(f'{device} decodes no JPEG files ({images}): set format="files"')
    for index, path in enumerate(jpegs.paths):
        if isinstance(results[index], RuntimeError):
            print(f"{path}: the processor decodes what the GPU does not read", file=sys.stderr)
            results[index] = jpegs.decode_on_cpu(index).to(device)
    return results


def random_boxes(sizes: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    """Draw a part of each image as torchvision's `RandomResizedCrop` does.

    Args:
        sizes: height and width of each image; int64 of shape (N, 2).

    Returns:
        top, left, height, width in pixels; int64 of shape (N, 4).
    """
    count, (height, width) = len(sizes), sizes.double().T
    area = torch.empty(TRIES, count, dtype=torch.double).uniform_(*AREA, generator=random)
    aspect = torch.empty_like(area).uniform_(*map(math.log, ASPECT), generator=random).exp()
    wide = (height * width * area * aspect).sqrt().round()
    high = (height * width * area / aspect).sqrt().round()
    fits = (wide >= 1) & (wide <= width) & (high >= 1) & (high <= height)
    first = fits.int().argmax(dim=0), torch.arange(count)
    # If no try fits: the largest part in the centre with a valid aspect.
    any_fits, centre = fits.any(dim=0), (width / height).clamp(*ASPECT)
    wide = torch.where(any_fits, wide[first], (height * centre).round().minimum(width))
    high = torch.where(any_fits, high[first], (width / centre).round().minimum(height))
    free = torch.stack([height - high, width - wide]) + 1
    offsets = (torch.rand(2, count, dtype=torch.double, generator=random) * free).floor()
    top, left = torch.where(any_fits, offsets, ((free - 1) / 2).floor())
    return torch.stack([top, left, high, wide], dim=1).long()


def centre_boxes(sizes: torch.Tensor, share: float) -> torch.Tensor:
    """Return the square in the centre of each image, with `share` of its shorter side."""
    side = (sizes.amin(dim=1) * share).round().long()
    corners = (sizes - side[:, None]) // 2
    return torch.stack([*corners.T, side, side], dim=1)


def crop_and_resize(
    images: Sequence[torch.Tensor], boxes: torch.Tensor, flips: torch.Tensor, image_px: int
) -> torch.Tensor:
    """Resize a box of each image to image_px × image_px with antialiasing, and flip some.

    On CUDA this is one kernel per batch, elsewhere PyTorch's `interpolate` for each image. Results
    differ by at most one level of 255.

    Args:
        images: bytes of shape (3, height, width), all on one device.
        boxes: top, left, height, width; int64 of shape (N, 4) in host memory.
        flips: which images to mirror horizontally; bool of shape (N,) in host memory.

    Returns:
        Bytes of shape (N, 3, image_px, image_px), stored channels last on CUDA.
    """
    if images[0].device.type == "cuda":
        return _crop_with_kernel(images, boxes, flips, image_px)
    results = []
    for image, (top, left, height, width), flip in zip(images, boxes.tolist(), flips.tolist()):
        part = image[None, :, top : top + height, left : left + width]
        part = interpolate(part, [image_px] * 2, mode="bilinear", antialias=True)[0]
        results.append(part.flip(-1) if flip else part)
    return torch.stack(results)


def _crop_with_kernel(
    images: Sequence[torch.Tensor], boxes: torch.Tensor, flips: torch.Tensor, image_px: int
) -> torch.Tensor:
    from course.data.formats.kernel import resize  # needs Triton, as CUDA builds have it

    device, count = images[0].device, len(images)
    images = [image.contiguous() for image in images]
    table = torch.tensor([[image.data_ptr(), *image.shape[1:]] for image in images])
    table = torch.cat([table, boxes, flips[:, None]], dim=1)
    if device.type == "cuda":
        table = table.pin_memory().to(device, non_blocking=True)
    shape = (count, 3, image_px, image_px)
    out = torch.empty(shape, dtype=torch.uint8, device=device, memory_format=torch.channels_last)
    columns = max(MIN_COLUMNS, 1 << (image_px - 1).bit_length())
    resize[(count, image_px)](table, out, image_px, COLUMNS=columns)
    return out
