"""JPEG files that the device decodes: processes only read them, a thread hands them over."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from course.config import Config
from course.data.default_set import DataError
from course.data.formats.crops import cropped, middle_boxes, random_boxes
from course.data.images import SHOWN, Files, one_thread, open_image

AHEAD = 4  # batches that are decoded before a step needs them
Batch = tuple[torch.Tensor, torch.Tensor]


class Encoded(Files):
    """Files as they lie on disk: an image is the bytes of its file, of shape (length,)."""

    def __getitem__(self, index: int) -> tuple[str, torch.Tensor, int]:
        path, label = self.samples[index]
        try:
            data = bytearray(Path(path).read_bytes())
            return path, torch.frombuffer(data, dtype=torch.uint8), label
        except (OSError, ValueError) as error:  # it is gone, or empty
            raise DataError(f"{path} cannot be read: {error}") from error


@dataclass(frozen=True)
class Jpegs:
    """The files of a batch, one after the other in one tensor: that is one thing to hand over."""

    joined: torch.Tensor  # uint8 of shape (bytes of all,)
    lengths: list[int]
    paths: list[str]
    seed: int  # of the crops: no thread's pace decides about them

    def pin_memory(self) -> Jpegs:
        """The same in page-locked memory; DataLoader asks for it."""
        return replace(self, joined=self.joined.pin_memory())


def collate(batch: list[tuple[str, torch.Tensor, int]]) -> tuple[Jpegs, torch.Tensor]:
    """What DataLoader makes of the files of a batch."""
    paths, files, labels = zip(*batch)
    seed = int(torch.randint(2**62, ()))
    return Jpegs(torch.cat(files), [*map(len, files)], [*paths], seed), torch.tensor(labels)


class Decoded:
    """Batches of a DataLoader of `Encoded` files, decoded and cropped on the device.

    A thread does it for the batches to come while a step computes, in a stream of its own. Where no
    GPU decodes (only NVIDIA's do), the processor does it step by step, and the log says so.

    Args:
        train: random crops and flips; else the middle of each image.
    """

    def __init__(self, batches: DataLoader, cfg: Config, device: torch.device, train: bool) -> None:
        self.by_gpu = device.type == "cuda" and bool(torch.version.cuda)
        if self.by_gpu and device.index is None:  # a thread begins on device 0
            device = torch.device("cuda", torch.cuda.current_device())
        self.batches, self.device, self.train = batches, device, train
        self.image_px = cfg.image_px
        self._stream: torch.cuda.Stream | None = None
        if train and not self.by_gpu:
            print(f"{device.type} decodes no JPEG files: the processor does", file=sys.stderr)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.__dict__["batches"], name)  # how it loads is the DataLoader's to tell

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Batch]:
        return self._ahead() if self.by_gpu else map(self._by_processor, self.batches)

    def _by_processor(self, batch: tuple[Jpegs, torch.Tensor]) -> Batch:
        jpegs, labels = batch
        with one_thread():
            images = [open_image(path) for path in jpegs.paths]
            return self._cropped(images, jpegs.seed).to(self.device), labels

    def _ahead(self) -> Iterator[Batch]:
        """Batches in their order, some of them made before they are asked for."""
        waiting: deque[Future] = deque()
        pool = ThreadPoolExecutor(1, "decode")
        try:
            for batch in self.batches:
                waiting.append(pool.submit(self._by_gpu, *batch))
                if len(waiting) > AHEAD:
                    yield self._handed_over(waiting.popleft())
            while waiting:
                yield self._handed_over(waiting.popleft())
        finally:  # also where the epoch is over before the batches are
            pool.shutdown(cancel_futures=True)

    def _by_gpu(self, jpegs: Jpegs, labels: torch.Tensor) -> Batch:
        torch.cuda.set_device(self.device)  # of this thread
        self._stream = self._stream or torch.cuda.Stream(self.device)
        with torch.cuda.stream(self._stream):
            batch = self._cropped(decoded(jpegs, self.device), jpegs.seed)
        self._stream.synchronize()  # it is there when it is handed over
        return batch, labels

    def _cropped(self, images: Sequence[torch.Tensor], seed: int) -> torch.Tensor:
        sizes = torch.tensor([image.shape[1:] for image in images])
        random = torch.Generator().manual_seed(seed)
        if self.train:
            boxes = random_boxes(sizes, random)
            flips = torch.rand(len(images), generator=random) < 0.5
        else:
            boxes, flips = middle_boxes(sizes, SHOWN), torch.zeros(len(images), dtype=torch.bool)
        return cropped(images, boxes, flips, self.image_px)

    def _handed_over(self, made: Future) -> Batch:
        batch, labels = made.result()
        # Its memory is of another stream, which must not use it again before this one is done.
        batch.record_stream(torch.cuda.current_stream(self.device))
        return batch, labels


def decoded(jpegs: Jpegs, device: torch.device) -> list[torch.Tensor]:
    """The images on a GPU, each in bytes of shape (3, height, width).

    What its engines do not read, a JPEG file in CMYK for instance, the processor decodes, and the
    log names it.

    Raises:
        DataError: a file is damaged, and is named; or the GPU decodes none at all.
        torch.OutOfMemoryError: the device is full.
    """
    from torchcodec.decoders import decode_jpeg

    files = [*jpegs.joined.split(jpegs.lengths)]
    try:
        return decode_jpeg(files, device=device)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        found = [_by_gpu_alone(file, device) for file in files]
        if len(files) > 1 and all(image is None for image in found):
            raise DataError(
                f'{device} decodes no JPEG files ({error}): set format="files"'
            ) from error
        return [
            _by_host(path, device) if image is None else image
            for image, path in zip(found, jpegs.paths)
        ]


def _by_gpu_alone(file: torch.Tensor, device: torch.device) -> torch.Tensor | None:
    from torchcodec.decoders import decode_jpeg

    try:
        return decode_jpeg(file, device=device)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:
        return None


def _by_host(path: str, device: torch.device) -> torch.Tensor:
    print(f"{path}: the processor decodes what the GPU does not read", file=sys.stderr)
    return open_image(path).to(device)
