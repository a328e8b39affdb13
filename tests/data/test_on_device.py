"""Files that the device decodes: the same crops anywhere, batches in order, damage by its name."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from job_helpers import prepared, run_forked
from PIL import Image
from torchvision.transforms import v2

from course.config import rung
from course.data.default_set import DataError
from course.data.formats import crops, on_device
from course.data.loader import image_sets, loaders
from course.runs.run import FOLDER_VARIABLE
from course.training.recorder import recording

CPU = torch.device("cpu")
CONFIG = rung(
    "gpu_decode", quick=True, image_px=48, batch_size=4, steps=5, workers=2, data="imagenet"
)
FULL = torch.OutOfMemoryError("the device is full")
# Triton's interpreter runs the kernel's lines on a processor; it is chosen before they are read.
KERNEL = """
import torch
from labs.lab_kernel import interpret
interpret()
from course.data.formats import crops
random = torch.Generator().manual_seed(1)
images = [torch.randint(0, 256, (3, *size), dtype=torch.uint8, generator=random)
          for size in ((50, 70), (30, 40), (90, 33), (16, 100))]
sizes = torch.tensor([image.shape[1:] for image in images])
boxes, flips = crops.random_boxes(sizes, random), torch.tensor([True, False, True, False])
found = crops._in_one_kernel(images, boxes, flips, 32)
wanted = crops.cropped(images, boxes, flips, 32)
assert found.is_contiguous(memory_format=torch.channels_last)
print(int((found.int() - wanted.int()).abs().max()))
"""


@pytest.fixture
def config(tiny_set: Path):
    return replace(CONFIG, data_root=str(tiny_set))


def test_boxes_lie_in_their_images() -> None:
    random = torch.Generator().manual_seed(0)
    sizes = torch.randint(1, 600, (2000, 2), generator=random)
    top, left, height, width = crops.random_boxes(sizes, random).T
    assert min(int(each.min()) for each in (top, left)) >= 0
    assert min(int(each.min()) for each in (height, width)) >= 1
    assert (top + height <= sizes[:, 0]).all() and (left + width <= sizes[:, 1]).all()


def test_boxes_are_drawn_as_torchvision_draws_them() -> None:
    torch.manual_seed(0)
    size, count = (375, 500), 4000
    drawn = crops.random_boxes(torch.tensor([size] * count), torch.Generator().manual_seed(0))
    theirs = v2.RandomResizedCrop(224)
    image = torch.empty(3, *size, dtype=torch.uint8)
    others = torch.tensor([[*theirs.make_params([image]).values()] for _ in range(count)])
    for ours, other in zip(drawn.double().T, others.double().T):
        assert abs(ours.mean() - other.mean()) < 0.05 * other.mean() + 2
        assert abs(ours.std() - other.std()) < 0.06 * other.std()


def test_what_fits_no_try_is_taken_from_the_middle() -> None:
    (box,) = crops.random_boxes(torch.tensor([[1, 400]]), torch.Generator()).tolist()
    assert box == [0, 199, 1, 1]
    assert crops.middle_boxes(torch.tensor([[256, 512]]), 224 / 256).tolist() == [
        [16, 144, 224, 224]
    ]


@pytest.mark.slow
def test_the_kernel_computes_what_interpolate_computes(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="Triton is not there: PyTorch brings it on Linux alone")
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    (script := tmp_path / "kernel.py").write_text(KERNEL)
    done = run_forked(script, folder=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) <= 1  # of 255: by rounding


@contextlib.contextmanager
def pretended_gpu(batches: on_device.Decoded) -> Iterator[None]:
    """Its threads and streams, where TorchCodec decodes on the processor."""
    from torchcodec import decoders

    stream = type("Stream", (), {"synchronize": lambda self: None})
    cuda = {
        "set_device": lambda device: None,
        "Stream": lambda device: stream(),
        "stream": lambda _: contextlib.nullcontext(),
        "current_stream": lambda device: None,
    }
    real = decoders.decode_jpeg
    with (
        patch.multiple(torch.cuda, **cuda),
        patch.object(torch.Tensor, "record_stream", lambda self, stream: None),
        patch.object(decoders, "decode_jpeg", lambda source, device: real(source)),
    ):
        batches.by_gpu = True
        yield


def test_a_gpu_gets_the_same_batches_in_the_same_order(config) -> None:
    batches, _ = loaders(image_sets(config), config, CPU, num_workers=2)
    with pretended_gpu(batches):
        ahead = [*batches]
    again, _ = loaders(image_sets(config), config, CPU, num_workers=2)
    for (images, labels), (others, theirs) in zip(ahead, again, strict=True):
        assert labels.tolist() == theirs.tolist()
        assert images.shape == (4, 3, 48, 48)
        assert (images.float() - others.float()).abs().mean() < 2  # two decoders enlarge colours


@pytest.mark.parametrize(
    "name, fields, given, asked",
    [
        ("CUDA_DEVICE_MAX_CONNECTIONS", {"format": "gpu_decode"}, None, "32"),
        ("CUDA_DEVICE_MAX_CONNECTIONS", {"format": "gpu_decode"}, "1", "1"),
        ("CUDA_DEVICE_MAX_CONNECTIONS", {"format": "files"}, None, None),
        ("TORCH_NCCL_HIGH_PRIORITY", {"algebra": True}, None, "1"),
        ("TORCH_NCCL_HIGH_PRIORITY", {"algebra": True}, "0", "0"),
        ("TORCH_NCCL_HIGH_PRIORITY", {}, None, None),
    ],
)
def test_a_decoders_stream_has_a_connection_of_its_own_and_the_algebras_messages_go_first(
    name: str, fields: dict, given: str | None, asked: str | None, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.delenv(name, raising=False)
    if given:
        monkeypatch.setenv(name, given)
    made = prepared(tmp_path / "run", "", rung("dataloader", quick=True, **fields))
    monkeypatch.setenv(FOLDER_VARIABLE, str(made.folder))
    with patch.dict(os.environ), recording():
        assert os.environ.get(name) == asked


def test_an_epoch_may_be_left_early(config) -> None:
    batches, _ = loaders(image_sets(config), config, CPU)
    with pretended_gpu(batches):
        for _ in batches:
            break


def test_what_a_gpu_does_not_read_the_processor_does(
    config, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    path = tmp_path / "cmyk.jpg"
    Image.new("CMYK", (40, 30), (0, 255, 255, 0)).save(path)
    Image.new("RGB", (20, 10)).save(png := tmp_path / "named.jpg", "PNG")
    good = Path(image_sets(config).train.samples[0][0])
    jpegs, _ = on_device.collate([encoded(each) for each in (path, png, good)])
    batches, _ = loaders(image_sets(config), config, CPU)
    with pretended_gpu(batches):
        images = on_device.decoded(jpegs, CPU)
    assert [image.shape for image in images[:2]] == [(3, 30, 40), (3, 10, 20)]
    assert "named.jpg: the processor decodes what the GPU does not" in capsys.readouterr().err


def test_a_gpu_that_decodes_nothing_is_no_processor_in_disguise(config, tmp_path: Path) -> None:
    paths = [Path(path) for path, _ in image_sets(config).train.samples[:2]]
    jpegs, _ = on_device.collate([encoded(each) for each in paths])
    for error, kind in ((RuntimeError("no driver"), DataError), (FULL, torch.OutOfMemoryError)):
        with (
            patch("torchcodec.decoders.decode_jpeg", side_effect=error),
            pytest.raises(kind, match="no driver|full"),
        ):
            on_device.decoded(jpegs, CPU)


def test_a_damaged_file_is_named(config, tmp_path: Path) -> None:
    path = tmp_path / "cut.jpg"
    path.write_bytes(Path(image_sets(config).train.samples[0][0]).read_bytes()[:500])
    jpegs, _ = on_device.collate([encoded(path)])
    batches, _ = loaders(image_sets(config), config, CPU)
    with pretended_gpu(batches), pytest.raises(DataError, match="cut.jpg cannot be decoded"):
        on_device.decoded(jpegs, CPU)


@pytest.mark.parametrize("content", [None, b""])
def test_a_file_that_is_gone_or_empty_is_named(
    tiny_set: Path, tmp_path: Path, content: bytes | None
) -> None:
    files = on_device.Encoded(str(tiny_set / "train"), None)
    gone = tmp_path / "gone.jpg"
    files.samples[0] = (str(gone), 0)
    if content is not None:
        gone.write_bytes(content)
    with pytest.raises(DataError, match="gone.jpg cannot be read"):
        files[0]


def encoded(path: Path) -> tuple[str, torch.Tensor, int]:
    return str(path), torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8), 0


def test_validation_shows_the_middle(config) -> None:
    _, val = loaders(image_sets(config), config, CPU)
    (first, _), (again, _) = next(iter(val)), next(iter(val))
    assert torch.equal(first, again)


def test_how_it_loads_is_told_as_of_any_loader(config, capsys: pytest.CaptureFixture) -> None:
    batches, _ = loaders(image_sets(config), config, CPU, num_workers=2, prefetch_factor=3)
    assert (batches.num_workers, batches.prefetch_factor, len(batches)) == (2, 3, config.steps)
    assert "cpu decodes no JPEG files: the processor does" in capsys.readouterr().err
