"""What a processor, or one node, does not show is rehearsed on a pretended accelerator.

Each takes a training script's text and a config, and yields what would be otherwise than the
config asks. Nothing is computed, so a run that failed can be rehearsed as well.
"""

from __future__ import annotations

import io
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import combinations, islice, product
from pathlib import Path
from typing import Any

from course.config import Config

ON = "rehearsed with a pretended accelerator,"
# A pretended rank whose numbers all differ: the second process of the second of two nodes.
RANK, LOCAL_RANK, RANKS = 5, 1, 8
ELSEWHERE = "rehearsed as rank 5 of 8, process 1 of the second of two nodes,"


def moving(text: str, cfg: Config) -> Iterator[str]:
    """Do weights, images and labels come to the device that the config asks for?"""
    from course.training.fake.pretended import rehearse

    found = rehearse(text, replace(cfg, device="auto", uint8=True))
    if found.error:
        yield f"{ON} the first step fails: {found.error}"
    elif found.computed_on.type == "cpu":
        yield f"{ON} the first step still computes on the CPU"
    elif {kind for kind, _ in found.copied.get("images", ())} - {"uint8"}:
        yield (
            f"{ON} images that are bytes come there as numbers four times as large: copy first, "
            f"and normalise there"
        )
    on_host = rehearse(text, replace(cfg, device="cpu"))
    if on_host.error and on_host.error == found.error:
        return
    if on_host.error or on_host.computed_on.type != "cpu":
        yield f'with cfg.device == "cpu" it must stay on the CPU: {on_host.error or "it does not"}'


def loading(text: str, cfg: Config) -> Iterator[str]:
    """Is memory pinned, and does nobody wait for copies, just where the config says so?"""
    from course.training.fake.pretended import rehearse

    for pins in (True, False):
        asked = not pins  # that nobody waits: two fields, so they are told apart
        cfg = replace(cfg, device="auto", pin_memory=pins, non_blocking=asked)
        found = rehearse(text, cfg)
        pinned = bool(found.loading.get("pin_memory"))
        if found.loading and pinned != pins:
            yield f"{ON} the DataLoader has pin_memory={pinned}, and the config asks {pins}"
            return
        if found.error:
            yield f"{ON} the first step fails: {found.error}"
            return
        otherwise = [what for what, ways in found.copied.items() if {not asked} & _flags(ways)]
        if otherwise:
            yield (
                f"{ON} {' and '.join(sorted(otherwise))} come with non_blocking={not asked}, and "
                f"the config asks {asked}: non_blocking=cfg.non_blocking in `images.to(…)` and in "
                f"labels' own"
            )
            return


def _flags(ways: set[tuple[str, bool]]) -> set[bool]:
    return {non_blocking for _, non_blocking in ways}


def joining(text: str, cfg: Config) -> Iterator[str]:
    """Does a rank of another node join the others, and take its own node's device?"""
    from course.training.fake.pretended import FIRST_NODE, rehearse

    cfg = replace(cfg, device="auto")
    found = rehearse(text, cfg, rank=RANK, local_rank=LOCAL_RANK, world_size=RANKS)
    if (joined := found.joined) is None:
        # A run whose ranks joined no group has failed, and says so itself.
        yield f"{ELSEWHERE} it joins no group: {found.error or 'init_process_group is not called'}"
        return
    due = {"rank": RANK, "world_size": RANKS}
    said = {name: joined.get(name) for name in due}
    if any(value not in (None, -1, due[name]) for name, value in said.items()):
        words = " and ".join(f"{name}={value}" for name, value in said.items())
        yield f"{ELSEWHERE} it joins with {words}: leave both to the launcher, who knows them"
    address = joined["init_method"] or "env://"
    if address != "env://" and FIRST_NODE not in address:
        yield f"{ELSEWHERE} it joins at {address}: leave the place to the launcher, who knows it"
    if joined["backend"] == "gloo":
        yield f"{ELSEWHERE} it sends through gloo, by way of the host: leave the backend out"
    if not found.computed_on:
        yield f"{ELSEWHERE} its first step fails: {found.error}"
        return
    # A device without a number is the current one; here, where there is none, it gets number 0.
    by_selection = found.computed_on.index == 0 and found.selected == LOCAL_RANK
    if found.computed_on.index != LOCAL_RANK and not by_selection:
        yield f"{ELSEWHERE} it computes on {found.computed_on}: take run.local_rank's device"
    elif found.selected != LOCAL_RANK:
        yield (
            f"{ELSEWHERE} device {found.selected or 0} stays the current one: "
            f"torch.accelerator.set_device_index(run.local_rank)"
        )


OTHER_MODE = "max-autotune-no-cudagraphs"  # than the one that comes without asking
TWICE: dict[str, Any] = {"epochs": 2, "budget_s": 0.0, "device": "cpu"}  # epochs, of a step each


def compiling(text: str, cfg: Config) -> Iterator[str]:
    """Is the network that trains compiled once, as the config has it, and is DDP around it?"""
    from course.training.fake.pretended import rehearse

    cfg = replace(cfg, **TWICE, compile=OTHER_MODE)
    found = rehearse(text, cfg)
    asked = found.compiled
    if found.error and not asked:
        yield f"rehearsed, the first step fails: {found.error}"
    elif not asked:
        yield "nothing calls torch.compile: model = torch.compile(model, mode=cfg.compile)"
    elif not any(each.calls for each in asked):
        yield (
            "`torch.compile(…)` is called, and what it gives back is not: the plain network "
            "trains. Keep it: model = torch.compile(…)"
        )
    elif len(rehearse(text, replace(cfg, epochs=1)).compiled) < len(asked):
        yield (
            f"`torch.compile(…)` lies inside the loop: in {TWICE['epochs']} epochs of a step each "
            f"it was called {len(asked)} times. Compile once, before the loop"
        )
    elif modes := {each.mode for each in asked} - {OTHER_MODE}:
        yield f"it compiles in the mode {modes.pop()!r}, whatever the config asks: mode=cfg.compile"
    elif rehearse(text, replace(cfg, compile="")).compiled:
        yield 'with cfg.compile == "" it compiles as well: `if cfg.compile:` before it'
    else:
        yield from _beside_ddp(text, cfg)


def _beside_ddp(text: str, cfg: Config) -> Iterator[str]:
    """As a rank of several: does DDP see what trains, and is it left to Python?"""
    from course.training.fake.pretended import rehearse

    found = rehearse(text, cfg, rank=RANK, local_rank=LOCAL_RANK, world_size=RANKS)
    if found.parallel and not any(found.parallel):
        yield (
            f"{ELSEWHERE} the compiled network passes DDP by, so that nobody averages gradients: "
            f"DDP(…) must be given what `torch.compile(…)` gives back"
        )
    elif any(each.with_ddp for each in found.compiled):
        yield (
            f"{ELSEWHERE} `torch.compile(…)` is given DDP's wrapper, whose own Python it cannot "
            f"read, so that graphs break there: compile the network first, then wrap it in DDP"
        )


# A small set in tar files, in which every image has a class of its own. The shards are no multiple
# of the readers, and ranks are fewer than workers: so one number is not taken for another.
SHARDS, EACH = 13, 3
RANKS_READING, WORKERS = 2, 3
READ = f"reading {SHARDS} small shards,"


def reading(text: str, cfg: Config) -> Iterator[str]:
    """Does the script's reader give each image of a shard once, with its class?"""
    with _small_shards(text, cfg) as (reader, problem):
        try:
            found = [*islice(reader(0, 1), SHARDS * EACH)] if reader else []
        except Exception as error:  # the learner's own, whatever it is
            problem = _told(error)
    if problem:
        yield f"{READ} {problem}"
        return
    if strange := [label for _, label in found if not isinstance(label, int)]:
        yield f"{READ} a class is a {type(strange[0]).__name__}, not an int: int(content)"
        return
    wrong = [label for image, label in found if abs(_grey(label) - float(image.float().mean())) > 2]
    if wrong:
        yield f"{READ} {len(wrong)} of {len(found)} images come with another one's class"
        return
    if missing := SHARDS * EACH - len({label for _, label in found}):
        yield f"{READ} a pass misses {missing} of {SHARDS * EACH} images, and gives others twice"


def sharing(text: str, cfg: Config) -> Iterator[str]:
    """Do ranks with several workers read all images of a pass, and none of them twice?"""
    if unread := [*islice(reading(text, cfg), 1)]:
        yield unread[0]
        return
    taken: dict[tuple[int, int], set[int]] = {}
    with _small_shards(text, cfg) as (reader, _):
        try:
            for rank, worker in product(range(RANKS_READING), range(WORKERS)):
                taken[rank, worker] = _labels(reader(rank, RANKS_READING), worker)
        except Exception as error:
            yield f"{READ} {_told(error)}"
            return
    for (one, own), (other, others) in combinations(taken.items(), 2):
        if own & others:
            same = one[0] == other[0]
            who = "two workers of a rank" if same else "two ranks"
            hint = "get_worker_info() says" if same else "self.rank and self.world_size say"
            yield f"{READ} {who} read the same images: {hint} which of how many this one is"
            return
    sizes = sorted(len(each) for each in taken.values())
    if sum(sizes) < SHARDS * EACH:
        missing = SHARDS * EACH - sum(sizes)
        yield f"{READ} nobody reads {missing} of {SHARDS * EACH} images: take what is left, too"
    elif sizes[-1] - sizes[0] > EACH:
        yield f"{READ} the readers' shares are as different as {sizes} images"


def _told(error: Exception) -> str:
    """An error in the script's own lines, with the function that it happened in."""
    frames = [each for each in traceback.extract_tb(error.__traceback__) if "train.py" in each[0]]
    where = f" (look at `{frames[-1].name}(…)`)" if frames else ""
    return f"it fails: {type(error).__name__}: {error}{where}"


def _labels(stream: Any, worker: int) -> set[int]:
    """Which images a reader gives, pass after pass, as that worker of so many."""
    from unittest.mock import patch

    from torch.utils.data._utils import worker as workers

    info = workers.WorkerInfo(id=worker, num_workers=WORKERS, seed=worker, dataset=stream)
    with patch.object(workers, "_worker_info", info):
        return {label for _, label in islice(stream, SHARDS * EACH)}


@contextmanager
def _small_shards(text: str, cfg: Config) -> Iterator[tuple[Any, str]]:
    """A function that makes the script's reader for a rank; or None, and why there is none."""
    from course.data.formats.convert import Part, Source, write_part
    from course.data.loader import ImageSets

    script: dict[str, Any] = {"__name__": "train"}
    try:  # the learner's own, which trains here anyway
        exec(compile(text, "train.py", "exec"), script)
    except Exception as error:
        yield None, _told(error)
        return
    if "Shards" not in script:
        yield None, "there is no class Shards any more"
        return
    with tempfile.TemporaryDirectory() as folder:
        root, paths = Path(folder), []
        for number in range(SHARDS):
            sources = [
                _image(root, Source(f"{at}.png", at))
                for at in range(number * EACH, number * EACH + EACH)
            ]
            write_part(
                "shards", Part("train", number, tuple(sources)), root, root, skip_damaged=False
            )
            paths.append(root / "train" / f"shard-{number:05d}.tar")
        train = type("Viewed", (), {"transform": staticmethod(lambda image: image)})
        sets = ImageSets(train, (), SHARDS * EACH, tuple(paths))
        small = replace(cfg, format="shards", shuffle_buffer=2)
        yield lambda rank, ranks: script["Shards"](sets, small, rank, ranks), ""


def _image(root: Path, source: Any) -> Any:
    """A file of one grey, which tells it from all others."""
    import numpy as np
    from PIL import Image

    data = io.BytesIO()
    Image.fromarray(np.full((8, 8, 3), _grey(source.label), np.uint8)).save(data, "JPEG")
    (root / source.name).write_bytes(data.getvalue())
    return source


def _grey(label: int) -> int:
    return 6 * label
