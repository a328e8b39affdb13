"""Images of any mode as RGB with 8 bits, and folders with links: the same in every format."""

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from course.config import rung
from course.data.folders import DataError
from course.data.formats import convert, raw
from course.data.formats.gpu_decode import Decoded, Encoded, collate
from course.data.formats.shards import ShardReader
from course.data.images import decode_image, open_folder, open_image
from course.data.loader import image_sets

SIDE = 300  # more than that of raw bytes
RAMP = np.tile(np.linspace(0, 65535, SIDE).astype(np.uint16), (SIDE, 1))
GREY = np.round(RAMP / 257)
# Red on the left; on the right arbitrary colours, which are transparent.
LEFT = np.arange(SIDE) < SIDE // 2
COLOURS = np.where(LEFT[None, :, None], (200, 0, 0), (0, 90, 255)).repeat(SIDE, 0).astype(np.uint8)
ALPHA = np.where(LEFT[None, :, None], 255, 0).repeat(SIDE, 0).astype(np.uint8)
ON_WHITE = np.where(ALPHA > 0, COLOURS, 255)


def palette() -> Image.Image:
    return Image.fromarray(COLOURS).quantize(4)


IMAGES: dict[str, tuple[Callable[[], Image.Image], str, dict, np.ndarray]] = {
    "16-bit PNG": (lambda: Image.fromarray(RAMP), "PNG", {}, GREY),
    "16-bit TIFF": (lambda: Image.fromarray(RAMP), "TIFF", {}, GREY),
    "16-bit PGM": (lambda: Image.fromarray(RAMP), "PPM", {}, GREY),
    "float TIFF": (lambda: Image.fromarray((RAMP / 65535).astype("f")), "TIFF", {}, GREY),
    "grey": (lambda: Image.fromarray(GREY.astype(np.uint8)), "PNG", {}, GREY),
    "RGBA": (lambda: Image.fromarray(np.dstack([COLOURS, ALPHA])), "PNG", {}, ON_WHITE),
    "grey with alpha": (
        lambda: Image.fromarray(np.dstack([COLOURS[..., :1], ALPHA])),
        "PNG",
        {},
        np.where(ALPHA[..., 0] > 0, 200, 255),
    ),
    "transparent colour": (
        lambda: Image.fromarray(COLOURS),
        "PNG",
        {"transparency": (0, 90, 255)},
        ON_WHITE,
    ),
    "palette": (palette, "PNG", {}, COLOURS),
    "transparent palette": (
        palette,
        "PNG",
        {"transparency": palette().getpixel((SIDE - 1, 0))},
        ON_WHITE,
    ),
    "bilevel": (lambda: Image.fromarray(LEFT[None].repeat(SIDE, 0)), "PNG", {}, LEFT * 255),
}


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


@pytest.mark.parametrize("name", IMAGES)
def test_every_mode_becomes_rgb(name: str) -> None:
    create, kind, options, expected = IMAGES[name]
    result = decode_image(encoded(create(), kind, **options)).permute(1, 2, 0).numpy()
    expected = (
        expected if expected.ndim == 3 else np.broadcast_to(expected, (SIDE, SIDE))[..., None]
    )
    assert np.abs(result.astype(int) - expected).max() <= 1


@pytest.mark.parametrize(
    "values, words",
    [
        ((RAMP / 100).astype("f"), "floating-point values are from 0 to 655.35"),
        ((RAMP / 65535 - 0.5).astype("f"), "from -0.5 to 0.5"),
        (np.where(RAMP > 0, 1, np.nan).astype("f"), "from nan to nan"),
        (RAMP.astype(np.int32) * 9, "32-bit values are from 0 to 589815"),
    ],
)
def test_an_unclear_range_is_refused_with_the_files_name(
    tmp_path: Path, values: np.ndarray, words: str
) -> None:
    path = tmp_path / "scan.tif"
    Image.fromarray(values).save(path)
    with pytest.raises(DataError, match=f"scan.tif.*{words}.*save it with 8 or 16 bits"):
        open_image(str(path))


@pytest.mark.parametrize(
    "data", [b"", b"no image", b"\x89PNG\r\n\x1a\n" + bytes(50), b"P6 90000 90000 255\n"]
)
def test_other_errors_of_decoders_name_the_file(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "bad.png"
    path.write_bytes(data)
    with pytest.raises(DataError, match="bad.png cannot be decoded"):
        open_image(str(path))


class Reader(ShardReader):
    def images_of(self, shard: Path) -> object:
        with tarfile.open(shard) as tar:
            for member in tar:
                if member.name.endswith(".jpg"):
                    yield tar.extractfile(member).read(), 0


def test_every_format_has_the_same_pixels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COURSE_DATA", str(tmp_path / "cache" / "default"))
    root = tmp_path / "set"
    for split in ("train", "val"):
        (root / split / "a").mkdir(parents=True)
        (root / split / "a" / "x.png").write_bytes(encoded(Image.fromarray(RAMP), "PNG"))
    grey = np.linspace(0, 255, SIDE)

    def check(images: torch.Tensor) -> None:
        row = images.float().mean(dim=(-3, -2)).flatten()
        expected = np.interp(np.linspace(0, 1, len(row)), np.linspace(0, 1, SIDE), grey)
        assert np.abs(row.numpy() - expected).max() < 4

    check(open_folder(root, "train")[0][0])
    check(raw.Raw(convert.convert_set("raw", root), "train", lambda image: image)[0][0])
    check(open_folder(convert.convert_set("small", root), "train")[0][0])
    convert.convert_set("shards", root)
    options = {"data": "imagenet", "data_root": str(root), "format": "shards", "batch_size": 1}
    cfg = rung("baseline", quick=True, **options)
    sets = image_sets(cfg)
    sets.train.transform = lambda image: image
    check(next(iter(Reader(sets, cfg)))[0])
    files = open_folder(root, "train", kind=Encoded)
    decoded = Decoded([collate([files[0]])], cfg, torch.device("cpu"), train=False)
    monkeypatch.setattr(decoded, "_crop", lambda images, seed: images[0])
    check(next(iter(decoded))[0])


def write_images(folder: Path, count: int) -> None:
    folder.mkdir(parents=True)
    for number in range(count):
        Image.new("RGB", (4, 4)).save(folder / f"{number}.png")


@pytest.mark.parametrize(
    "link, target",
    [("self", "cat"), ("young/back", "cat"), ("young/self", "cat/young"), ("up", "")],
)
def test_a_link_to_a_folder_around_it_is_not_followed(
    tmp_path: Path, link: str, target: str
) -> None:
    train = tmp_path / "set" / "train"
    write_images(tmp_path / "elsewhere", 3)
    write_images(train / "cat", 2)
    write_images(train / "cat" / "young", 2)
    write_images(train / "dog", 1)
    (train / "fox").symlink_to(tmp_path / "elsewhere")  # as sets on a cluster have them
    (train / "cat" / link).symlink_to(train / target)
    files = open_folder(tmp_path / "set", "train")
    assert files.classes == ["cat", "dog", "fox"]
    paths = [Path(path).relative_to(train).as_posix() for path, _ in files.samples]
    cats = ["cat/0.png", "cat/1.png", "cat/young/0.png", "cat/young/1.png"]
    assert paths == [*cats, "dog/0.png", *(f"fox/{number}.png" for number in range(3))]
