"""Simulate what this machine may lack: an accelerator, another node, many readers.

Each function takes a training script's text and a config, and yields the first thing that is wrong.
`course.checks.compare` calls them in a separate process.
"""

from __future__ import annotations

import io
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from itertools import combinations, islice, product
from pathlib import Path
from typing import Any

from PIL import Image
from torch.profiler import ProfilerActivity
from torch.utils.data import DataLoader

from course.checks.fake_accelerator import EACH_RANK, FIRST_NODE, PORT, FirstStep, first_step
from course.checks.lab import Unexpected, expect
from course.checks.script_edits import compile_script
from course.config import CHOICES, Config
from course.data.formats.shards import ShardReader
from course.data.loader import ImageSets
from course.runs.failures import summarize

ON = "on a fake accelerator"
# A rank whose three numbers all differ: the second process on the second of two nodes.
RANK, LOCAL_RANK, RANKS = 5, 1, 8
ANOTHER_RANK = {"rank": RANK, "local_rank": LOCAL_RANK, "world_size": RANKS}
ELSEWHERE = "as rank 5 of 8, process 1 of the second of two nodes,"


def moving(text: str, cfg: Config) -> Iterator[str]:
    """Expect weights, images and labels on the device that the config requests."""
    step = first_step(text, replace(cfg, device="auto", uint8=True))
    without = first_step(text, replace(cfg, device="auto"), is_available=False)
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
    elif without.error or without.computed_on.type != "cpu":
        where = without.error or f"the first step computes on {without.computed_on}"
        yield f"on a machine without an accelerator, cfg.device='auto' must use the CPU: {where}"
    elif on_host.error:
        yield f"with cfg.device='cpu' the first step fails: {on_host.error}"
    elif on_host.computed_on.type != "cpu":
        yield (
            f"with cfg.device='cpu' the first step computes on {on_host.computed_on.type}, "
            f"expected cpu: use the accelerator only with cfg.device='auto'"
        )


def casting(text: str, cfg: Config) -> Iterator[str]:
    """Expect the forward pass on an accelerator in the config's format."""
    for precision, due in (("tf32", "float32"), ("bf16", "bfloat16"), ("fp16", "float16")):
        place = {} if precision == "fp16" else ANOTHER_RANK
        step = first_step(text, replace(cfg, device="auto", precision=precision), **place)
        types = " and ".join(sorted(step.types))
        if step.error:
            yield f"{ON} with cfg.precision={precision!r} the first step fails: {step.error}"
        elif types != due:
            yield (
                f"{ON} with cfg.precision={precision!r} the forward pass runs in {types}, expected "
                f"{due}: `torch.autocast(…)` with device.type, and dtype= and enabled= that follow "
                f"cfg.precision"
            )


def agreeing(text: str, cfg: Config) -> Iterator[str]:
    """Expect each rank to compute like rank 0: on the same device type, in the same format."""
    half = {"precision": "fp16", "channels_last": True, "compile": "default"}
    cfg = replace(cfg, device="auto", **half)
    first = first_step(text, cfg)
    other = first_step(text, replace(cfg, sync_batchnorm=True), **ANOTHER_RANK)
    if first.error:  # which another check reports
        return
    if other.error:
        yield f"{ELSEWHERE} the first step fails: {other.error}"
        return
    pairs = {
        "type of device": (first.computed_on.type, other.computed_on.type),
        "type of the forward pass": (_listed(first.types), _listed(other.types)),
        "layout of images and weights": (_listed(first.layouts), _listed(other.layouts)),
        "number of calls of torch.compile": (first.compiles, other.compiles),
        "list of the settings of each update": (_settings(first), _settings(other)),
        "scaling of the loss": (
            "on" * first.scales_loss or "off",
            "on" * other.scales_loss or "off",
        ),
    }
    for name, (expected, value) in pairs.items():
        if value != expected:
            yield (
                f"{ELSEWHERE} with cfg.sync_batchnorm, the {name} is {value}, and {expected} on "
                f"rank 0 without it"
            )


def _settings(step: FirstStep) -> str:
    updates = [
        " and ".join(
            f"lr={lr:.3g}, weight_decay={decay:.3g} of {count} weights"
            for count, lr, decay in groups
        )
        for groups in step.updates
    ]
    return "; ".join(updates)


def _listed(values: set[str]) -> str:
    return " and ".join(sorted(values))


def tracing(text: str, cfg: Config) -> Iterator[str]:
    """Expect a profiler that records the accelerator, too."""
    step = first_step(text, replace(cfg, device="auto"))
    if step.activities is not None and not {*step.activities} - {ProfilerActivity.CPU}:
        yield f"{ON} only the CPU is traced: leave activities out, and the profiler records both"


# Settings of the DataLoader's workers: cfg.workers, cfg.persistent_workers, cfg.prefetch_factor.
WORKERS_TRIED = ((0, False, 2), (16, True, 4), (5, False, 3))


def loading(text: str, cfg: Config) -> Iterator[str]:
    """Expect the config's workers, pinned memory and non-blocking copies, on each rank."""
    for number, (workers, persistent, prefetch) in enumerate(WORKERS_TRIED):
        pins = number < 2
        non_blocking = not pins  # so that the two fields differ
        cfg = replace(
            cfg, device="auto", pin_memory=pins, non_blocking=non_blocking, workers=workers,
            persistent_workers=persistent, prefetch_factor=prefetch,
        )  # fmt: skip
        step = first_step(text, cfg, **ANOTHER_RANK if workers else {})
        how = f"{ELSEWHERE} and " * bool(workers) + ON
        due = {"num_workers": workers, "persistent_workers": persistent, "pin_memory": pins}
        due |= {"timeout": 0}  # a limit would end slow runs
        due |= {"prefetch_factor": prefetch} if workers else {}
        for name, value in due.items():
            given = step.loading.get(name, 0 if name == "num_workers" else None)
            if step.loading and (given or False) != value:
                yield f"{how} the DataLoader has {name}={given}, and the config asks for {value}"
        if step.error:
            yield f"{how} the first step fails: {step.error}"
        for name, copies in sorted(step.copied.items()):
            if (not non_blocking) in {flag for _, flag in copies}:
                yield (
                    f"{how} {name} are copied with non_blocking={not non_blocking}, and the config "
                    f"asks for {non_blocking}: non_blocking=cfg.non_blocking in `{name}.to(…)`"
                )


def offloading(text: str, cfg: Config) -> Iterator[str]:
    """Expect saved tensors to be stored on the host, and to return to the device in backward."""
    step = first_step(text, replace(cfg, device="auto", offload=True))
    if step.error:
        yield f"{ON} the first step fails: {step.error}"
    elif step.kept_on != {"cpu"}:
        yield f"{ON} what backward needs stays there: keep it in host memory, if cfg.offload"
    elif step.returned_to == {"cpu"}:
        yield f"{ON} backward gets tensors of the CPU: bring them back, `tensor.to(device)`"
    elif not step.pins:
        yield f"{ON} each copy to the host waits: save_on_cpu(pin_memory=device.type == 'cuda')"


def joining(text: str, cfg: Config) -> Iterator[str]:
    """Expect a rank of another node to join the others, and to use a device of its own node."""
    cfg = replace(cfg, device="auto")
    step = first_step(text, cfg, **ANOTHER_RANK)
    if (joined := step.joined) is None:
        yield f"{ELSEWHERE} it joins no group: {step.error or 'init_process_group is not called'}"
        return
    due = {"rank": RANK, "world_size": RANKS}
    arguments = {name: joined.get(name) for name in due}
    if any(value not in (None, -1, due[name]) for name, value in arguments.items()):
        words = " and ".join(f"{name}={value}" for name, value in arguments.items())
        yield f"{ELSEWHERE} it joins with {words}: leave both to the launcher"
    elif f"{FIRST_NODE}:{PORT}" not in joined["address"]:
        yield (
            f"{ELSEWHERE} it joins at {joined['address']}, expected {FIRST_NODE}:{PORT}: leave "
            f"address and port to the launcher"
        )
    elif joined.get("timeout") != timedelta(seconds=cfg.collective_timeout_s):
        yield (
            f"{ELSEWHERE} it joins with timeout={joined.get('timeout')}, expected "
            f"{cfg.collective_timeout_s} s: timeout=timedelta(seconds=cfg.collective_timeout_s)"
        )
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


def splitting(text: str, cfg: Config) -> Iterator[str]:
    """Expect a rank of several nodes to load its share of a batch."""
    step = first_step(text, replace(cfg, device="auto"), **ANOTHER_RANK)
    if step.share not in (None, EACH_RANK):
        yield (
            f"{ELSEWHERE} {step.share} of a batch's {EACH_RANK * RANKS} images are loaded, "
            f"expected {EACH_RANK}: divide by the number of all ranks, run.world_size"
        )
    sampler = step.loading.get("sampler")
    number, ranks = getattr(sampler, "rank", RANK), getattr(sampler, "num_replicas", RANKS)
    if (number, ranks) != (RANK, RANKS):
        yield (
            f"{ELSEWHERE} the sampler has rank {number} of {ranks}, so that ranks of two nodes "
            f"train on the same images: give it run.world_size and run.rank"
        )


# A small set in tar files, in which every image has a different class. The number of shards is not
# a multiple of the readers, and there are fewer ranks than workers: no two numbers are confused.
SHARDS, EACH = 9, 3
IMAGES = SHARDS * EACH
RANKS_READING, WORKERS = 2, 3
GREY = 6  # an image of class 3 has the grey level 3 * GREY
READ = f"reading {SHARDS} small shards,"
CAUSES = {  # by a part of the error's text
    "seeking backwards": 'in mode "r|", read each member before the next',
    "bytes-like": "images_of yields pairs, a JPEG file's bytes and its class",
    "too few for all": "here they are enough: split self.shards (this rank's) among its workers",
    "no len()": "worker_shards returns a list of shards",
    "'NoneType'": "`get_worker_info()` is None in a process without workers",
}


def reading(text: str, cfg: Config) -> Iterator[str]:
    """Expect a reader that yields each image once per pass, with its class, and main to use it."""
    yield from _read(text, cfg, (1, 0))
    yield from _using(text, cfg)


def sharing(text: str, cfg: Config) -> Iterator[str]:
    """Expect the readers of all ranks and workers to split the images, and to miss none."""
    yield from _read(text, cfg, (1, 0), (RANKS_READING, WORKERS), (RANKS_READING, 0))
    yield from _using(text, cfg)


def _using(text: str, cfg: Config) -> Iterator[str]:
    """Expect main to read from shards only if the config requests it, as the rank that it is."""
    for name, workers in product(CHOICES["format"], (2, 0)):
        fields = {"format": name, "workers": workers}
        step = first_step(text, replace(cfg, device="cpu", **fields), **ANOTHER_RANK)
        how = f"with cfg.format={name!r} and cfg.workers={workers}"
        is_reader = isinstance(step.train, ShardReader)
        if step.train is None:
            why = ". `replace(…)` makes a copy of sets" * ("FrozenInstance" in step.error)
            yield f"{how}, main fails before it calls `loaders(…)`: {step.error}{why}"
        elif is_reader and name != "shards":
            yield f'{how}, sets.train is a Shards: replace it only if cfg.format == "shards"'
        elif not is_reader and name == "shards":
            yield (
                f"{how}, sets.train is still the files: `replace(…)` it by your Shards in main, "
                f"however many workers there are"
            )
        elif is_reader and (step.train.rank, step.train.world_size) != (RANK, RANKS):
            numbers = f"rank={step.train.rank}, world_size={step.train.world_size}"
            yield (
                f"as rank {RANK} of {RANKS}, main creates Shards with {numbers}, so that all ranks "
                f"read the same shards: pass run.rank and run.world_size to `Shards(…)`"
            )


def _read(text: str, cfg: Config, *counts: tuple[int, int]) -> Iterator[str]:
    try:
        with tempfile.TemporaryDirectory() as folder:
            reader = _reader(text, cfg, Path(folder))
            for ranks, workers in counts:
                _check_readers(reader, ranks, workers)
            if counts[1:]:
                one_shard = _loader(reader(0, SHARDS), None, workers=2)
                read = 0
                with suppress(Exception):  # a script's own, that the shards are too few
                    read = len([*islice(one_shard, 2)])
                expect(
                    read < 2,
                    "two workers read the only shard: worker_shards returns an empty list to a "
                    "worker without a shard, which then reports it",
                )
    except Exception as error:
        yield _in_words(error).replace(f"{folder}/", "")


def _check_readers(reader: Any, ranks: int, workers: int) -> None:
    taken: list[tuple[int, int, set[int]]] = []
    for rank in range(ranks):
        dataset = reader(rank, ranks)
        shards, known = dataset.shards, [*dataset.shards]
        # Each worker yields one batch.
        batches = islice(_loader(dataset, IMAGES, workers), max(workers, 1))
        for number, (images, labels) in enumerate(batches):
            kind = type(labels[0]).__name__
            expect(hasattr(labels, "tolist"), f"a class is a {kind}, expected an int: int(content)")
            greys = images.float().mean(dim=(1, 2, 3))
            wrong = int(((greys - GREY * labels).abs() > 2).sum())
            expect(
                not wrong,
                f"{wrong} of {IMAGES} images have another image's class: KEY.cls has the class of "
                f"the KEY.jpg before it",
            )
            taken.append((rank, number, {*labels.tolist()}))
        again = [[*dataset.worker_shards()] for _ in range(2)]
        expect(
            dataset.shards is shards and shards == known,
            "worker_shards changes self.shards, from which the next epoch chooses again: return a "
            "new list",
        )
        expect(
            again[0] == again[1],
            "worker_shards returns other shards when the next epoch calls it: the same reader must "
            "always get the same ones",
        )
    how = f"with {workers} workers on each of {ranks} ranks, " * (ranks > 1)
    for (first, number, images), (second, other, others) in combinations(taken, 2):
        expect(
            not images & others,
            f"{how}worker {number} of rank {first} and worker {other} of rank {second} read the "
            f"same images: split self.shards by the id of get_worker_info(), in steps of its "
            f"num_workers",
        )
    sizes = sorted(len(images) for *_, images in taken)
    missing = IMAGES - sum(sizes)
    expect(
        not missing,
        f"{how}no reader takes {missing} of {IMAGES} images: images_of must yield all images of "
        f"a shard and no others, and worker_shards leave out none of self.shards (this rank's), "
        f"even if their number is no multiple of the workers",
    )
    expect(sizes[-1] - sizes[0] <= EACH, f"{how}readers take different numbers of images: {sizes}")


def _loader(dataset: Any, batch: int | None, workers: int) -> DataLoader:
    context = "fork" if workers else None  # the script's class cannot be pickled
    return DataLoader(dataset, batch, num_workers=workers, multiprocessing_context=context)


def _in_words(error: Exception) -> str:
    problem = str(error) if isinstance(error, Unexpected) else f"it fails: {summarize(error)}"
    cause = next((f": {words}" for part, words in CAUSES.items() if part in problem), "")
    return f"{READ} {problem}{cause}"


class _Viewed(list):
    """Numbers in place of images, which are not changed."""

    @staticmethod
    def transform(image: Any) -> Any:
        return image


def _reader(text: str, cfg: Config, root: Path) -> Any:
    """Return a function that creates a rank's reader of small shards, of the script's class."""
    script: dict[str, Any] = {"__name__": "train"}
    exec(compile_script(text), script)
    expect("Shards" in script, "there is no class Shards in the script")
    paths = []
    for number in range(SHARDS):
        paths.append(root / f"shard-{number:05d}.tar")
        with tarfile.open(paths[-1], "w") as shard:
            for label in range(number * EACH, number * EACH + EACH):
                Image.new("RGB", (8, 8), (GREY * label,) * 3).save(jpeg := io.BytesIO(), "JPEG")
                for kind, content in (("jpg", jpeg.getvalue()), ("cls", str(label).encode())):
                    member = tarfile.TarInfo(f"{label}.{kind}")
                    member.size = len(content)
                    shard.addfile(member, io.BytesIO(content))
    images = _Viewed(range(IMAGES))
    sets = ImageSets(images, (), IMAGES, tuple(paths))
    small = replace(cfg, format="shards", shuffle_buffer=2)
    return lambda rank, ranks: script["Shards"](sets, small, rank, ranks)
