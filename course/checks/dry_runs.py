"""Simulate what this machine may lack: an accelerator, another node, many readers.

Each function takes a training script's text and a config, and yields the first thing that is wrong.
`course.checks.compare` calls them in a separate process.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, islice, product
from pathlib import Path
from typing import Any

from course.checks.lab import Unexpected, expect
from course.config import Config
from course.runs.failures import summarize

ON = "on a fake accelerator"
# A rank whose three numbers all differ: the second process on the second of two nodes.
RANK, LOCAL_RANK, RANKS = 5, 1, 8
ELSEWHERE = "as rank 5 of 8, process 1 of the second of two nodes,"


def moving(text: str, cfg: Config) -> Iterator[str]:
    """Expect weights, images and labels on the device that the config requests."""
    from course.checks.fake_accelerator import first_step

    step = first_step(text, replace(cfg, device="auto", uint8=True))
    on_host = first_step(text, replace(cfg, device="cpu"))
    if step.error:
        yield f"{ON} the first step fails: {step.error}"
    elif step.computed_on.type == "cpu":
        yield (
            f"{ON} with cfg.device='auto' the first step computes on the CPU: select the device "
            f"with torch.accelerator, and move network, images and labels to it"
        )
    elif {kind for kind, _ in step.copied.get("images", ())} - {"uint8"}:
        yield f"{ON} images arrive as floats, four times as large as bytes: copy, then normalise"
    elif on_host.error:
        yield f"with cfg.device='cpu' the first step fails: {on_host.error}"
    elif on_host.computed_on.type != "cpu":
        yield (
            f"with cfg.device='cpu' the first step computes on {on_host.computed_on.type}, "
            f"expected cpu: use the accelerator only with cfg.device='auto'"
        )


def loading(text: str, cfg: Config) -> Iterator[str]:
    """Expect pinned memory and non-blocking copies if the config requests them."""
    from course.checks.fake_accelerator import first_step

    for pins in (True, False):
        non_blocking = not pins  # so that the two fields differ
        cfg = replace(cfg, device="auto", pin_memory=pins, non_blocking=non_blocking)
        step = first_step(text, cfg)
        pinned = bool(step.loading.get("pin_memory"))
        if step.loading and pinned != pins:
            yield f"{ON} the DataLoader has pin_memory={pinned}, and the config asks for {pins}"
        elif step.error:
            yield f"{ON} the first step fails: {step.error}"
        for name, copies in sorted(step.copied.items()):
            if (not non_blocking) in {flag for _, flag in copies}:
                yield (
                    f"{ON} {name} are copied with non_blocking={not non_blocking}, and the config "
                    f"asks for {non_blocking}: non_blocking=cfg.non_blocking in `{name}.to(…)`"
                )


def offloading(text: str, cfg: Config) -> Iterator[str]:
    """Expect saved tensors to be stored on the host, and to return to the device in backward."""
    from course.checks.fake_accelerator import first_step

    step = first_step(text, replace(cfg, device="auto", offload=True))
    if step.error:
        yield f"{ON} the first step fails: {step.error}"
    elif step.kept_on != {"cpu"}:
        yield f"{ON} what backward needs stays there: keep it in host memory, if cfg.offload"
    elif step.returned_to == {"cpu"}:
        yield f"{ON} backward gets tensors of the CPU: bring them back, `tensor.to(device)`"


def joining(text: str, cfg: Config) -> Iterator[str]:
    """Expect a rank of another node to join the others, and to use a device of its own node."""
    from course.checks.fake_accelerator import FIRST_NODE, first_step

    cfg = replace(cfg, device="auto")
    step = first_step(text, cfg, rank=RANK, local_rank=LOCAL_RANK, world_size=RANKS)
    if (joined := step.joined) is None:
        yield f"{ELSEWHERE} it joins no group: {step.error or 'init_process_group is not called'}"
        return
    due = {"rank": RANK, "world_size": RANKS}
    arguments = {name: joined.get(name) for name in due}
    address = joined["init_method"] or "env://"
    if any(value not in (None, -1, due[name]) for name, value in arguments.items()):
        words = " and ".join(f"{name}={value}" for name, value in arguments.items())
        yield f"{ELSEWHERE} it joins with {words}: leave both to the launcher"
    elif address != "env://" and FIRST_NODE not in address:
        yield f"{ELSEWHERE} it joins at {address}: leave the address to the launcher"
    elif joined["backend"] == "gloo":
        yield f"{ELSEWHERE} gradients would go through gloo and the host: leave the backend out"
    elif not step.computed_on:
        yield f"{ELSEWHERE} its first step fails: {step.error}"
    # A device without a number is the current one; a fake one then gets number 0.
    elif step.computed_on.index not in (LOCAL_RANK, 0 if step.selected == LOCAL_RANK else None):
        yield f"{ELSEWHERE} it computes on {step.computed_on}: take run.local_rank's device"
    elif step.selected != LOCAL_RANK:
        yield (
            f"{ELSEWHERE} device {step.selected or 0} stays the current one: "
            f"torch.accelerator.set_device_index(run.local_rank)"
        )


# A small set in tar files, in which every image has a different class. The number of shards is not
# a multiple of the readers, and there are fewer ranks than workers: no two numbers are confused.
SHARDS, EACH = 13, 3
IMAGES = SHARDS * EACH
RANKS_READING, WORKERS = 2, 3
READ = f"reading {SHARDS} small shards,"


def reading(text: str, cfg: Config) -> Iterator[str]:
    """Expect a reader that yields each image once per pass, with its class."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            reader = _reader(text, cfg, Path(folder))
            samples = [*islice(reader(0, 1), IMAGES)]
        strange = [label for _, label in samples if not isinstance(label, int)]
        kind = type([*strange, 0][0]).__name__
        expect(not strange, f"a class is a {kind}, expected an int: yield int(content)")
        wrong = [x for image, x in samples if abs(_grey(x) - float(image.float().mean())) > 2]
        expect(
            not wrong,
            f"{len(wrong)} of {len(samples)} images have another image's class: KEY.cls has the "
            f"class of the KEY.jpg before it",
        )
        missing = IMAGES - len({label for _, label in samples})
        expect(
            not missing,
            f"a pass misses {missing} of {IMAGES} images, and repeats others: images_of must yield "
            f"all images of a shard, and worker_shards return all shards of this reader",
        )
    except Exception as error:
        yield _in_words(error)


def sharing(text: str, cfg: Config) -> Iterator[str]:
    """Expect the readers of all ranks and workers to split the images, and to miss none."""
    if problem := next(reading(text, cfg), ""):
        yield problem
        return
    try:
        with tempfile.TemporaryDirectory() as folder:
            reader = _reader(text, cfg, Path(folder))
            for workers in (WORKERS, 0):
                _check_shares(reader, workers)
    except Exception as error:
        yield _in_words(error)


def _check_shares(reader: Any, workers: int) -> None:
    numbers = range(workers) if workers else [None]
    taken = {
        (rank, worker): _labels(reader(rank, RANKS_READING), worker, workers)
        for rank, worker in product(range(RANKS_READING), numbers)
    }
    how = f"with {workers} workers on each of {RANKS_READING} ranks,"
    for (first, images), (second, others) in combinations(taken.items(), 2):
        readers, hint = "two ranks", "self.rank and self.world_size"
        if first[0] == second[0]:
            readers, hint = "two workers of a rank", "the id and num_workers of get_worker_info()"
        expect(
            not images & others,
            f"{how} {readers} read the same images: split the shards by {hint}",
        )
    sizes = sorted(map(len, taken.values()))
    missing = IMAGES - sum(sizes)
    expect(
        not missing,
        f"{how} no reader takes {missing} of {IMAGES} images: worker_shards must leave out no "
        f"shard, even if their number is no multiple of the readers",
    )
    expect(sizes[-1] - sizes[0] <= EACH, f"{how} readers take different numbers of images: {sizes}")


def _labels(stream: Any, worker: int | None, workers: int) -> set[int]:
    """Return which images a reader yields in several passes as this worker; None: no worker."""
    from unittest.mock import patch

    from torch.utils.data._utils import worker as loading

    info = None
    if worker is not None:
        info = loading.WorkerInfo(id=worker, num_workers=workers, seed=worker, dataset=stream)
    with patch.object(loading, "_worker_info", info):
        return {label for _, label in islice(stream, IMAGES)}


def _in_words(error: Exception) -> str:
    problem = str(error) if isinstance(error, Unexpected) else f"it fails: {summarize(error)}"
    return f"{READ} {problem}"


def _reader(text: str, cfg: Config, root: Path) -> Any:
    """Return a function that creates a rank's reader of small shards, of the script's class."""
    from course.data.formats.convert import Part, Source, write_part
    from course.data.loader import ImageSets

    script: dict[str, Any] = {"__name__": "train"}
    exec(compile(text, "train.py", "exec"), script)
    expect("Shards" in script, "there is no class Shards in the script")
    paths = []
    for number in range(SHARDS):
        labels = range(number * EACH, number * EACH + EACH)
        sources = [_image(root, Source(f"{label}.png", label)) for label in labels]
        write_part("shards", Part("train", number, tuple(sources)), root, root, skip_damaged=False)
        paths.append(root / "train" / f"shard-{number:05d}.tar")
    train = type("Viewed", (), {"transform": staticmethod(lambda image: image)})
    sets = ImageSets(train, (), IMAGES, tuple(paths))
    small = replace(cfg, format="shards", shuffle_buffer=2)
    return lambda rank, ranks: script["Shards"](sets, small, rank, ranks)


def _image(root: Path, source: Any) -> Any:
    """Write an image with one grey level, different from that of every other image."""
    import numpy as np
    from PIL import Image

    data = io.BytesIO()
    Image.fromarray(np.full((8, 8, 3), _grey(source.label), np.uint8)).save(data, "JPEG")
    (root / source.name).write_bytes(data.getvalue())
    return source


def _grey(label: int) -> int:
    return 6 * label
