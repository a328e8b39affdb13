"""Images that the GPU decodes: the same crops as elsewhere, in order, and damage named."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from job_helpers import run_forked
from PIL import Image
from torchvision.transforms import v2

from course.config import Config, rung
from course.data.folders import DataError
from course.data.formats import gpu_decode
from course.data.formats.gpu_decode import collate, decode_on_gpu
from course.data.loader import image_sets, loaders

CPU = torch.device("cpu")
# Triton's interpreter runs the kernel on a CPU; it must be chosen before the kernel is imported.
KERNEL = """
import torch
from electives.kernel import interpret
interpret()
from course.data.formats import gpu_decode
random = torch.Generator().manual_seed(1)
images = [torch.randint(0, 256, (3, *size), dtype=torch.uint8, generator=random)
          for size in ((50, 70), (30, 40), (90, 33), (16, 100))]
sizes = torch.tensor([image.shape[1:] for image in images])
boxes, flips = gpu_decode.random_boxes(sizes, random), torch.tensor([True, False, True, False])
result = gpu_decode._crop_with_kernel(images, boxes, flips, 32)
expected = gpu_decode.crop_and_resize(images, boxes, flips, 32)
assert result.is_contiguous(memory_format=torch.channels_last)
print(int((result.int() - expected.int()).abs().max()))
"""


@pytest.fixture
def config(tiny_set: Path) -> Config:
    sizes = {"image_px": 48, "batch_size": 4, "steps": 5, "workers": 2}
    return rung("gpu_decode", quick=True, data="imagenet", data_root=str(tiny_set), **sizes)


def test_boxes_are_drawn_as_in_torchvision() -> None:
    torch.manual_seed(0)
    size, count = (375, 500), 4000
    random = torch.Generator().manual_seed(0)
    boxes = gpu_decode.random_boxes(torch.tensor([size] * count), random)
    transform, image = v2.RandomResizedCrop(224), torch.empty(3, *size, dtype=torch.uint8)
    expected = torch.tensor([[*transform.make_params([image]).values()] for _ in range(count)])
    for ours, theirs in zip(boxes.double().T, expected.double().T):
        assert abs(ours.mean() - theirs.mean()) < 0.05 * theirs.mean() + 2
        assert abs(ours.std() - theirs.std()) < 0.06 * theirs.std()


def test_boxes_are_inside_their_images() -> None:
    random = torch.Generator().manual_seed(0)
    sizes = torch.randint(1, 600, (2000, 2), generator=random)
    top, left, height, width = gpu_decode.random_boxes(sizes, random).T
    assert min(top.min(), left.min()) >= 0 and min(height.min(), width.min()) >= 1
    assert (top + height <= sizes[:, 0]).all() and (left + width <= sizes[:, 1]).all()
    (box,) = gpu_decode.random_boxes(torch.tensor([[1, 400]]), torch.Generator()).tolist()
    assert box == [0, 199, 1, 1]  # no try fits
    centre = gpu_decode.centre_boxes(torch.tensor([[256, 512]]), 224 / 256)
    assert centre.tolist() == [[16, 144, 224, 224]]


@pytest.mark.slow
def test_the_kernel_computes_the_same_as_interpolate(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="PyTorch installs Triton on Linux only")
    (script := tmp_path / "kernel.py").write_text(KERNEL)
    result = run_forked(script, folder=tmp_path, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) <= 1  # of 255


@contextlib.contextmanager
def simulated_gpu(batches: gpu_decode.Decoded) -> Iterator[None]:
    """Use the threads and streams of a GPU, while TorchCodec decodes on the CPU."""
    from torchcodec import decoders

    stream = type("Stream", (), {"synchronize": lambda self: None})
    cuda = {
        "set_device": lambda device: None,
        "Stream": lambda device: stream(),
        "stream": lambda _: contextlib.nullcontext(),
        "current_stream": lambda device: None,
    }
    decode_jpeg = decoders.decode_jpeg
    with (
        patch.multiple(torch.cuda, **cuda),
        patch.object(torch.Tensor, "record_stream", lambda self, stream: None),
        patch.object(decoders, "decode_jpeg", lambda source, device: decode_jpeg(source)),
    ):
        batches.by_gpu = True
        yield


def test_a_gpu_gets_the_same_batches_in_the_same_order(config: Config, capsys) -> None:
    loading = {"num_workers": 2, "prefetch_factor": 3}
    batches, val = loaders(image_sets(config), config, CPU, **loading)
    assert (batches.num_workers, batches.prefetch_factor, len(batches)) == (2, 3, config.steps)
    assert "cpu decodes no JPEG files: the processor does" in capsys.readouterr().err
    with simulated_gpu(batches):
        from_gpu = [*batches]
    from_cpu, _ = loaders(image_sets(config), config, CPU, **loading)
    for (images, labels), (expected, expected_labels) in zip(from_gpu, from_cpu, strict=True):
        assert labels.tolist() == expected_labels.tolist()
        assert images.shape == (4, 3, 48, 48)
        assert (images.float() - expected.float()).abs().mean() < 2  # two decoders
    with simulated_gpu(batches):
        for _ in batches:
            break  # an epoch may be left early
    assert torch.equal(next(iter(val))[0], next(iter(val))[0])  # the centre, without randomness


def encode(path: Path) -> tuple[str, torch.Tensor, int, int]:
    return str(path), torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8), 0, 0


def test_the_cpu_decodes_what_the_gpu_does_not_support(
    config: Config, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    sets = image_sets(config)
    Image.new("CMYK", (40, 30), (0, 255, 255, 0)).save(cmyk := tmp_path / "cmyk.jpg")
    Image.new("RGB", (20, 10)).save(png := tmp_path / "named.jpg", "PNG")
    jpeg = Path(sets.train.samples[0][0])
    (cut := tmp_path / "cut.jpg").write_bytes(jpeg.read_bytes()[:500])
    with simulated_gpu(loaders(sets, config, CPU)[0]):
        jpegs, _ = collate([encode(path) for path in (cmyk, png, jpeg)])
        images = decode_on_gpu(jpegs, CPU)
        assert [image.shape for image in images[:2]] == [(3, 30, 40), (3, 10, 20)]
        assert "named.jpg: the processor decodes what the GPU does not" in capsys.readouterr().err
        with pytest.raises(DataError, match="cut.jpg cannot be decoded"):
            decode_on_gpu(collate([encode(cut)])[0], CPU)
