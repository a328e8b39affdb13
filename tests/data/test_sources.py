"""Sets as people have them: each form gives the same images and classes, and damage is named."""

import csv
import io
import json
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import webdataset
from PIL import Image
from scipy.io import savemat
from typer.testing import CliRunner

from course.__main__ import app
from course.config import rung
from course.data import folders, open_folder
from course.data.folders import DataError
from course.data.formats import convert
from course.data.formats.gpu_decode import Encoded
from course.data.formats.raw import Raw
from course.data.formats.sources import TRAIN_TAR, open_source
from course.data.loader import image_sets, loaders

CPU = torch.device("cpu")
KIT = "ILSVRC2012_devkit_t12"
FORMS = ["kit", "csv", "kaggle", "classes", "cls", "json", "parquet", "shards"]
Images = dict[str, list[tuple[int, bytes]]]  # by split: class and file


@pytest.fixture
def images(small_set: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Images:
    """Return the files of six classes; some are as odd as ImageNet's."""
    monkeypatch.setenv("COURSE_DATA", str(tmp_path / "cache" / "default"))
    monkeypatch.setattr(convert, "MIN_PART", 5)
    images: Images = {}
    for split in ("train", "val"):
        images[split] = [
            (label, path.read_bytes())
            for label, folder in enumerate(sorted((small_set / split).iterdir())[:6])
            for path in sorted(folder.iterdir())
        ]
    for number, kind, mode in ((0, "JPEG", "CMYK"), (1, "PNG", "RGB"), (2, "JPEG", "L")):
        data = io.BytesIO()
        Image.effect_noise((40, 30), 90).convert(mode).save(data, kind)
        images["train"][number] = (images["train"][number][0], data.getvalue())
    return images


def wnid(label: int) -> str:
    return f"n{1440764 + 1000 * label:08d}"


def val_order(images: Images) -> list[tuple[int, bytes]]:
    """Return the validation images in an order that is not that of their classes."""
    return [images["val"][at] for at in (3, 0, 5, 1, 4, 2)]


def add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


def write_kit(folder: Path, images: Images) -> None:
    """Write the development kit, whose numbers are 1 to 6 in reverse order of the names."""
    # The last synset is no class: the real one has 860 of those, with higher numbers.
    fields = ("ILSVRC2012_ID", "WNID", "words", "num_children")
    values = [(6 - label, wnid(label), f"word {label}", 0) for label in range(6)]
    synsets = np.zeros((7, 1), dtype=[(name, object) for name in fields])
    synsets[:, 0] = [*values, (7, "n00001740", "entity", 6)]
    mat = io.BytesIO()
    savemat(mat, {"synsets": synsets})
    truth = "".join(f"{6 - label}\n" for label, _ in val_order(images))
    with tarfile.open(folder / f"{KIT}.tar.gz", "w:gz") as tar:
        add(tar, f"{KIT}/data/meta.mat", mat.getvalue())
        add(tar, f"{KIT}/data/ILSVRC2012_validation_ground_truth.txt", truth.encode())


def write_csv(folder: Path, images: Images) -> None:
    with (folder / "LOC_val_solution.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["ImageId", "PredictionString"])
        for at, (label, _) in enumerate(val_order(images), 1):
            writer.writerow([f"ILSVRC2012_val_{at:08d}", f"{wnid(label)} 1 2 3 4 "])


def write_val(folder: Path, images: Images) -> None:
    folder.mkdir(parents=True)
    for at, (_, data) in enumerate(val_order(images), 1):
        (folder / f"ILSVRC2012_val_{at:08d}.JPEG").write_bytes(data)


def write_classes(folder: Path, images: list[tuple[int, bytes]]) -> None:
    for at, (label, data) in enumerate(images):
        (folder / wnid(label)).mkdir(parents=True, exist_ok=True)
        (folder / wnid(label) / f"{wnid(label)}_{at}.JPEG").write_bytes(data)


def write_official(folder: Path, images: Images) -> None:
    """Write the two tar files with the system's tar, whose headers differ from Python's."""
    write_classes(folder / "classes", images["train"])
    write_val(folder / "images", images)
    tar = ["tar", "--create", "--file"]
    for label in (4, 2, 0, 1, 3, 5):
        files = sorted(path.name for path in (folder / "classes" / wnid(label)).iterdir())
        inner = [*tar, f"{wnid(label)}.tar", "-C", f"classes/{wnid(label)}", *files]
        subprocess.run(inner, cwd=folder, check=True)
    inner = [f"{wnid(label)}.tar" for label in (4, 2, 0, 1, 3, 5)]
    subprocess.run([*tar, "ILSVRC2012_img_train.tar", *inner], cwd=folder, check=True)
    names = sorted(path.name for path in (folder / "images").iterdir())
    val = [*tar, "ILSVRC2012_img_val.tar", "-C", "images", *reversed(names)]
    subprocess.run(val, cwd=folder, check=True)
    for name in inner:
        (folder / name).unlink()
    shutil.rmtree(folder / "classes")
    shutil.rmtree(folder / "images")


def write_webdataset(folder: Path, images: Images, sample: Callable[[int, bytes], dict]) -> None:
    for split, name in (("train", "imagenet-train"), ("val", "imagenet-validation")):
        pattern = str(folder / f"{name}-%06d.tar")
        with webdataset.ShardWriter(pattern, maxcount=4, verbose=0) as writer:
            for at, (label, data) in enumerate(images[split]):
                writer.write({"__key__": f"part/{at % 4:04d}", **sample(label, data)})


def write_parquet(folder: Path, images: Images, first: int = 0) -> None:
    pa = pytest.importorskip("pyarrow", reason="pyarrow, an optional package, is not installed")
    import pyarrow.parquet as parquet

    (folder / "data").mkdir(exist_ok=True)
    names = {"info": {"features": {"label": {"names": [f"word {at}" for at in range(6)]}}}}
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    schema = pa.schema([("image", image), ("label", pa.int64())])
    schema = schema.with_metadata({"huggingface": json.dumps(names)})
    for split, name in (("train", "train"), ("val", "validation")):
        for number in range(2):
            rows = images[split][number::2]
            columns = {
                "image": [{"bytes": data, "path": None} for _, data in rows],
                "label": [label + first for label, _ in rows],
            }
            file = folder / "data" / f"{name}-{number:05d}-of-00002.parquet"
            parquet.write_table(pa.table(columns, schema), file, row_group_size=2)


def write(form: str, folder: Path, images: Images) -> Path:
    """Write a set in one of FORMS, and return its folder."""
    folder.mkdir()
    if form in ("kit", "csv"):
        write_official(folder, images)
        (write_kit if form == "kit" else write_csv)(folder, images)
    elif form == "kaggle":
        inside = folder / "ILSVRC" / "Data" / "CLS-LOC"
        write_classes(inside / "train", images["train"])
        write_val(inside / "val", images)
        write_csv(folder, images)
    elif form == "classes":
        for split, files in images.items():
            write_classes(folder / split, files)
    elif form == "cls":
        write_webdataset(folder, images, lambda label, data: {"jpg": data, "cls": label})
    elif form == "json":
        about = lambda label, data: {"png": data, "json": {"label": label, "width": 5}}  # noqa: E731
        write_webdataset(folder, images, about)
    elif form == "parquet":
        write_parquet(folder, images)
    elif form == "shards":
        convert.convert_set("shards", write("classes", folder / "files", images), folder / "set")
        return folder / "set"
    return folder


def contents(folder: Path) -> Images:
    """Return the images of a folder of shards or files, sorted."""
    images = {}
    for split in ("train", "val"):
        samples = open_folder(folder, split).samples
        images[split] = sorted((samples[at][1], samples.read(at)) for at in range(len(samples)))
    return images


def in_order(images: Images) -> Images:
    return {split: sorted(files) for split, files in images.items()}


@pytest.mark.parametrize("form", FORMS)
def test_each_form_gives_the_same_images_and_classes(
    form: str, images: Images, tmp_path: Path
) -> None:
    root, target = write(form, tmp_path / "set", images), tmp_path / "new" / "shards"
    result = CliRunner().invoke(app, ["data", "--from", str(root), "--to", str(target)])
    assert result.exit_code == 0, (result.output, result.exception)
    assert "12 train, 6 val; 6 classes" in result.stderr and "needs about" in result.stderr
    assert f"data_root={target} --set format=shards" in result.stdout.replace("\n", " ")
    assert contents(target) == in_order(images)
    assert not [*target.parent.glob("*.partial")]
    labels = ["0000", "0005"] if form in ("cls", "json", "parquet") else [wnid(0), wnid(5)]
    assert folders.index(target)["classes"][::5] == labels
    files = convert.convert_set("files", root, tmp_path / "files")
    assert contents(files) == in_order(images)
    assert sorted(path.name for path in (files / "val").iterdir())[::5] == labels


@pytest.mark.parametrize("form", ["kit", "cls", "parquet"])
@pytest.mark.parametrize("kind", ["small", "raw"])
def test_small_and_raw_images_are_made_without_unpacking(
    kind: str, form: str, images: Images, tmp_path: Path
) -> None:
    folder = convert.convert_set(kind, write(form, tmp_path / "set", images), tmp_path / "new")
    cfg = rung("baseline", quick=True, data="imagenet", data_root=str(folder), format=kind)
    sets = image_sets(replace(cfg, batch_size=4))
    labels = sorted(label for _, label in (sets.val[at] for at in range(6)))
    assert (len(sets.train), sets.classes, labels) == (12, 6, [0, 1, 2, 3, 4, 5])


@pytest.mark.parametrize("format_", ["shards", "files", "gpu_decode"])
def test_training_and_validating_need_only_the_shards(
    format_: str, images: Images, tmp_path: Path
) -> None:
    root = convert.convert_set("shards", write("kit", tmp_path / "set", images), tmp_path / "new")
    shutil.rmtree(tmp_path / "set")
    moved = root.rename(tmp_path / "moved")
    cfg = rung("baseline", quick=True, data="imagenet", data_root=str(moved), format=format_)
    cfg = replace(cfg, batch_size=4, image_px=32, drop_last=format_ == "shards")
    sets = image_sets(cfg)
    assert len(sets.shards) == (3 if format_ == "shards" else 0)
    sampled = dict.fromkeys(("train", "val"), torch.empty(0, dtype=torch.int64))
    for split, batches in zip(sampled, loaders(sets, cfg, CPU, num_workers=1)):
        seen = [labels for pixels, labels in batches if pixels.shape[1:] == (3, 32, 32)]
        sampled[split] = torch.cat(seen).bincount()
    assert sampled["val"].tolist() == [1] * 6
    if format_ != "shards":  # the stream's class is in the script
        assert sampled["train"].tolist() == [2] * 6


def test_shards_and_files_have_the_same_order_of_validation_images(
    images: Images, tmp_path: Path
) -> None:
    root = write("classes", tmp_path / "set", images)
    shards = convert.convert_set("shards", root)
    files, packed = open_folder(root, "val").samples, open_folder(shards, "val").samples
    assert [files.read(at) for at in range(6)] == [packed.read(at) for at in range(6)]


def test_encoded_images_of_shards_are_named(images: Images, tmp_path: Path) -> None:
    images["train"][5] = (2, b"no image")
    root = write("csv", tmp_path / "set", images)
    with pytest.raises(DataError, match=r"img_train.tar: n01442764_5.JPEG cannot be decoded"):
        convert.convert_set("shards", root, tmp_path / "new")
    folder = convert.convert_set("shards", root, tmp_path / "new", skip_damaged=True)
    index = folders.index(folder)["splits"]["train"]
    assert index["damaged"] == [f"train/{wnid(2)}/{wnid(2)}_5.JPEG"] and index["images"] == 11
    place, _, label, *_ = open_folder(folder, "train", kind=Encoded)[5]
    assert (place.endswith(f": {wnid(3)}_6.JPEG"), label) == (True, 3)


def cut(path: Path, share: float) -> None:
    with path.open("r+b") as file:
        file.truncate(int(path.stat().st_size * share))


def overwrite(path: Path, begin: int) -> None:
    with path.open("r+b") as file:
        file.seek(begin)
        file.write(b"damage " * 73 + b"!")


def second_header(path: Path) -> int:
    with tarfile.open(path) as tar:
        return tar.getmembers()[1].offset


def number_from_one(root: Path, images: Images) -> None:
    for path in root.iterdir():
        path.unlink()
    write_webdataset(root, images, lambda label, data: {"jpg": data, "cls": label + 1})


def one_class_more(root: Path, images: Images) -> None:
    with tarfile.open(root / "imagenet-validation-000009.tar", "w") as tar:
        add(tar, "x.jpg", images["val"][0][1])
        add(tar, "x.cls", b"6")


def repeat_first(path: Path) -> None:
    """Append a tar file's first member, as `tar -r` does with a file that it already has."""
    with tarfile.open(path) as tar:
        first = tar.getmembers()[0]
        content = tar.extractfile(first).read()
    with tarfile.open(path, "a") as tar:
        add(tar, first.name, content)


def label_as(number: int) -> Callable[[Path, Images], None]:
    def write_one(root: Path, images: Images) -> None:
        with tarfile.open(root / "imagenet-train-000009.tar", "w") as tar:
            add(tar, "x.jpg", images["train"][0][1])
            add(tar, "x.cls", b"%d" % number)

    return write_one


DAMAGE = {  # form, what is done to it, and words of the message
    "a cut train tar": (
        "kit",
        lambda root, _: cut(root / "ILSVRC2012_img_train.tar", 0.6),
        r"img_train.tar \(n\d+.tar\) cannot be read as a tar file.*unexpected end",
    ),
    "a header in the middle": (
        "kit",
        lambda root, _: overwrite(
            root / "ILSVRC2012_img_val.tar", second_header(root / "ILSVRC2012_img_val.tar")
        ),
        "img_val.tar cannot be read as a tar file.*damaged or truncated after byte",
    ),
    "a cut kit": ("kit", lambda root, _: cut(root / f"{KIT}.tar.gz", 0.5), "devkit.*copy it again"),
    "no kit": (
        "kit",
        lambda root, _: (root / f"{KIT}.tar.gz").unlink(),
        "does not say which class an image has: put ILSVRC2012_devkit_t12.tar.gz.*or Kaggle's",
    ),
    "no val tar": (
        "kit",
        lambda root, _: (root / "ILSVRC2012_img_val.tar").unlink(),
        "has no ILSVRC2012_img_val.tar",
    ),
    "an unknown class in the CSV": (
        "csv",
        lambda root, images: write_csv(root, {"val": [(9, b"")] * 6}),
        "00000001.JPEG is of class n01449764, which no training image has.* 6 classes",
    ),
    "a class too many in val/": (
        "classes",
        lambda root, images: write_classes(root / "val", [(7, images["val"][0][1])]),
        r"differ in their class folders: \['n01447764'\]",
    ),
    "a class too many in shards": ("cls", one_class_more, "val has the label 6; expected 0 to 5"),
    "labels from 1": ("cls", number_from_one, "labels .* are from 1 to 6; .*Subtract 1"),
    "parquet labels from 1": (
        "parquet",
        lambda root, images: write_parquet(root, images, first=1),
        "labels .* are from 1 to 6; .*Subtract 1",
    ),
    "a cut parquet file": (
        "parquet",
        lambda root, _: cut(root / "data" / "train-00000-of-00002.parquet", 0.5),
        "train-00000-of-00002.parquet cannot be read as parquet",
    ),
    "only validation": (
        "cls",
        lambda root, _: [path.unlink() for path in root.glob("*train*")],
        "none with train in its name",
    ),
    "compressed shards": (
        "cls",
        lambda root, _: subprocess.run(
            "gzip imagenet-train-000000.tar && mv imagenet-train-000000.tar.gz "
            "imagenet-train-000000.tar",
            shell=True, cwd=root, check=True,
        ),
        "imagenet-train-000000.tar cannot be read as a tar file without compression",
    ),
    "a class twice": (
        "kit",
        lambda root, _: repeat_first(root / "ILSVRC2012_img_train.tar"),
        r"img_train.tar \((n\d+).tar\): class \1 is in it twice",
    ),
    "an image twice": (
        "kit",
        lambda root, _: repeat_first(root / "ILSVRC2012_img_val.tar"),
        r"img_val.tar has ILSVRC2012_val_\d+.JPEG twice",
    ),
    "a key twice": (
        "cls",
        lambda root, _: repeat_first(root / "imagenet-train-000000.tar"),
        "imagenet-train-000000.tar has part/0000.(cls|jpg) twice",
    ),
    "a class too far": ("cls", label_as(10**9), "label 1000000000, .*only 13 .*without gaps"),
    "no number of a class": ("cls", label_as(10**30), "label 10+, but there are only 13"),
    "a CSV that is cut": (
        "csv",
        lambda root, _: (root / "LOC_val_solution.csv").write_text(
            "ImageId,PredictionString\nILSVRC2012_val_00000001\n"
        ),
        "LOC_val_solution.csv cannot be read .*with a class in each row",
    ),
    "a CSV that is none": (
        "csv",
        lambda root, _: (root / "LOC_val_solution.csv").write_bytes(b"PK\x03\x04\xff\x80"),
        "LOC_val_solution.csv cannot be read .*expected columns ImageId",
    ),
    "nothing known": (
        "cls",
        lambda root, _: [path.rename(path.with_suffix(".zip")) for path in root.iterdir()],
        "contains no set that can be read: expected one of",
    ),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_bad_sets_are_named_and_nothing_is_written(
    damage: str, images: Images, tmp_path: Path
) -> None:
    form, change, words = DAMAGE[damage]
    root = write(form, tmp_path / "set", images)
    change(root, images)
    with pytest.raises(DataError, match=f"(?s){words}"):
        convert.convert_set("shards", root, tmp_path / "new" / "shards")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(("form", "inside"), [("classes", "train/new"), ("cls", "new")])
def test_a_set_is_not_converted_into_itself(
    form: str, inside: str, images: Images, tmp_path: Path
) -> None:
    root = write(form, tmp_path / "set", images)
    with pytest.raises(
        DataError, match=f"{inside} is inside .*name a folder outside of it by --to"
    ):
        convert.convert_set("shards", root, root / inside)
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="file is a file: name a new folder by --to"):
        convert.convert_set("shards", root, tmp_path / "file")
    assert {path.name for path in tmp_path.iterdir()} == {"set", "file"}


def test_the_command_to_train_can_be_copied(images: Images, tmp_path: Path) -> None:
    root, target = write("classes", tmp_path / "my set", images), tmp_path / "Lucas' shards"
    result = CliRunner().invoke(app, ["data", "--from", str(root), "--to", str(target)])
    assert f"data_root={target}" in shlex.split(result.stdout.splitlines()[-1])


def test_shards_that_do_not_match_their_index_are_named(images: Images, tmp_path: Path) -> None:
    folder = write("shards", tmp_path / "set", images)
    cfg = rung("shards", quick=True, data="imagenet", data_root=str(folder), batch_size=4)
    image_sets(cfg)
    shard = folder / "val" / "shard-00001.tar"
    with shard.open("ab") as file:
        file.write(bytes(512))
    message = "val/shard-00001.tar has .* bytes, and the set's index expects .*copy the set again"
    with pytest.raises(DataError, match=message):
        image_sets(cfg)
    shard.unlink()
    with pytest.raises(DataError, match="val/shard-00001.tar is missing"):
        image_sets(cfg)
    (folder / "val.npy").unlink()
    with pytest.raises(DataError, match=r"no val.npy.*make the shards again"):
        image_sets(cfg)


def test_a_conversion_does_not_replace_that_of_another_set(images: Images, tmp_path: Path) -> None:
    first, second = (write("classes", tmp_path / name, images) for name in ("one", "two"))
    target = convert.convert_set("shards", first, tmp_path / "new")
    for source, kind in ((second, "shards"), (first, "raw")):
        with pytest.raises(DataError, match=f"new contains images of {first}, as shards: .* --to"):
            convert.convert_set(kind, source, target)
    with pytest.raises(DataError, match=f"{first} .*--to"):
        convert.convert_set("files", first, first)
    assert contents(target) == in_order(images)


@pytest.mark.slow
def test_the_second_of_two_conversions_waits_and_says_so(images: Images, tmp_path: Path) -> None:
    root, target = write("classes", tmp_path / "set", images), tmp_path / "new"
    script = (
        "import os, sys\nfrom pathlib import Path\nfrom course.data.formats import convert\n"
        "encode = convert._encode\n"
        "def slow(*args):\n    print('encoding', flush=True)\n"
        "    os.read(0, 1)\n    return encode(*args)\n"
        "convert._encode = slow if sys.argv[3] == 'slow' else encode\n"
        "convert.convert_set('shards', Path(sys.argv[1]), Path(sys.argv[2]))\n"
    )
    command = [sys.executable, "-c", script, str(root), str(target)]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    first = subprocess.Popen([*command, "slow"], text=True, **pipes)
    assert first.stdout.readline()  # it has begun; its threads may print at once
    second = subprocess.Popen([*command, ""], text=True, **pipes)
    lines = iter(second.stderr.readline, "")
    assert any(f"another process writes {target}: waiting" in line for line in lines)
    errors = [process.communicate(timeout=60)[1] for process in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0), errors
    assert contents(target) == in_order(images)


def test_parquet_without_pyarrow_is_explained(
    images: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    for name in ("train-0.parquet", "validation-0.parquet"):
        (tmp_path / name).touch()
    with pytest.raises(
        DataError, match=r"parquet files need pyarrow .*pip install -e .\[parquet\]"
    ):
        convert.convert_set("shards", tmp_path, tmp_path / "new")


def test_an_interrupted_import_of_parquet_keeps_what_was_unpacked(
    images: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, encode = write("parquet", tmp_path / "set", images), convert._encode

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(convert, "_encode", stop)
        convert.convert_set("shards", root, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.glob("new.partial/*/*.images")}
    assert len(kept) == 4
    assert convert._encode is encode
    folder = convert.convert_set("shards", root, tmp_path / "new")
    assert contents(folder) == in_order(images)
    assert not [*folder.rglob("*.images")] and os.listdir(tmp_path).count("new.partial") == 0


@pytest.mark.parametrize("name", ["x-train-0.tar", "x-train-0.parquet", "index.json", TRAIN_TAR])
def test_no_one_waits_for_a_pipe_in_a_set(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(DataError, match="contains no set that can be read"):
        open_source(tmp_path)


def test_no_one_waits_for_a_pipe_in_a_part_of_a_set(images: Images, tmp_path: Path) -> None:
    kit = write("kit", tmp_path / "kit", images)
    folder = convert.convert_set("raw", kit, tmp_path / "raw")
    pixels, *_ = sorted(folder.glob("val/images-*.npy"))
    pixels.unlink()
    os.mkfifo(pixels)
    with pytest.raises(DataError, match="images-00000.npy is not a file"):
        Raw(folder, "val", lambda image: image)[0]
    (kit / f"{KIT}.tar.gz").unlink()
    (kit / KIT / "data").mkdir(parents=True)
    os.mkfifo(kit / KIT / "data/meta.mat")
    with pytest.raises(DataError, match="KeyError: .meta.mat.*expected data.meta.mat"):
        open_source(kit)
