"""Lab 2.2: its checks and recorded runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from course.checks import dry_runs
from course.checks.lab import Lab, Mechanism, Place, Recording
from course.config import Config, rung
from course.runs.run import Run

RANKS = 2  # of a check: every laptop has two cores

# Of the first gradients' norm beside that of one process on the joined batch. What may differ are
# random crops, which each rank draws for itself, and BatchNorm's smaller batches: 0.87 to 1.09 in
# runs of seven seeds. A forgotten or doubled mean over two ranks is a factor of two.
NORMS_ALIKE = (0.7, 1.4)

SAME_LOSS = 0.12  # of a step's loss, for the same reasons: 2.7 to 5.8 % in those runs

SAME_VAL_LOSS = 1.3  # times; two trainings differ by a few percent, a wrong mean by a factor


def _rank_faults(run: Run, _: Run) -> Iterator[str]:
    joined = [rank["evidence"].get("world_size", 1) for rank in run.ranks]
    if set(joined) != {run.record.gpus}:
        yield f"{run.record.gpus} processes ran, and saw groups of {joined}: init_process_group"
    places = [(rank["host"], rank["evidence"].get("device", "cpu")) for rank in run.ranks]
    shared = {device for host, device in places if places.count((host, device)) > 1}
    if strangers := shared - {"cpu"}:
        yield f"several ranks computed on {', '.join(strangers)}: take run.local_rank's device"


def _rank_seen(run: Run) -> str:
    devices = ", ".join(rank["evidence"].get("device", "cpu") for rank in run.ranks)
    return (
        f"{len(run.ranks)} ranks in one process group, on {devices}; a second node's rank rehearsed"
    )


def _parallel_faults(run: Run, against: Run) -> Iterator[str]:
    seen, world = [rank["evidence"] for rank in run.ranks], run.record.gpus
    share = run.config.batch_size // world
    for rank, each in enumerate(seen):
        if each["share"] != share:
            yield (
                f"rank {rank} took {each['share']} images a step, not {share}: batch_size is "
                f"what one update sees over all ranks"
            )
            break
    if _in_order(seen, world):
        yield "the sampler does not shuffle: every epoch takes files as they lie, class by class"
        return
    if _same_images(seen):
        yield "two ranks began an epoch with the same images: give loaders your sampler"
    elif shared := _taken_twice(seen):
        yield (
            f"in one epoch two ranks took the same {len(shared)} images (number {shared[0]}, "
            f"say): they need one order, in which each has its own places"
        )
    epochs = seen[0]["labels"]
    if len(epochs) > 1 and epochs[0] and epochs[0] == epochs[1]:
        yield "both epochs began with the same images: sampler.set_epoch(epoch)"
    yield from _sent_otherwise(seen)
    yield from _wrong_mean(run, against)


def _sent_otherwise(seen: list[dict[str, Any]]) -> Iterator[str]:
    """Gradients that were not sent, or not by DDP; weights that differ at the end."""
    if not seen[0].get("collectives", {}).get("allreduce"):
        yield (
            "no gradient was sent to another rank: wrap the model in DistributedDataParallel, and "
            "call what it gives you, model = DDP(model)"
        )
    elif "ddp" not in seen[0]:
        yield (
            "gradients were sent, but not by DistributedDataParallel: what is sent after backward "
            "has nothing left to hide behind"
        )
    if len({each["weights_sum"] for each in seen}) > 1:
        yield "at the end the ranks have different weights"


def _in_order(seen: list[dict[str, Any]], world: int) -> bool:
    """Did each rank take the files as they lie, every world-th one?"""
    first = [each["taken"][0] if each.get("taken") else [] for each in seen]
    return all(
        taken and taken == [rank + world * place for place in range(len(taken))]
        for rank, taken in enumerate(first)
    )


def _same_images(seen: list[dict[str, Any]]) -> bool:
    """Did two ranks begin an epoch alike? Only labels of files tell: synthetic ones are equal."""
    first = [str(each["labels"][0]) for each in seen if any(each["labels"][:1])]
    return len(set(first)) < len(first)


def _taken_twice(seen: list[dict[str, Any]]) -> list[int]:
    """Images that two ranks took in one epoch, but for those that fill the last share."""
    for name in ("taken", "low"):
        for epoch in zip(*(each.get(name, []) for each in seen)):
            counts = Counter(image for images in epoch for image in set(images))
            if len(shared := [image for image, count in counts.items() if count > 1]) >= len(seen):
                return sorted(shared)
    return []


def _wrong_mean(run: Run, against: Run) -> Iterator[str]:
    norm, before = (each.record.evidence["gradient_norm"] for each in (run, against))
    if norm and before and not NORMS_ALIKE[0] <= norm / before <= NORMS_ALIKE[1]:
        yield (
            f"the first gradients are {norm / before:.2f} times those of one process on the same "
            f"images: DDP divides by the number of ranks, and nothing else may"
        )


def _parallel_seen(run: Run) -> str:
    seen = run.record.evidence
    return (
        f"{len(run.ranks)} ranks, {seen['share']} images each, no two alike; "
        f"{seen['collectives']['allreduce']} all-reduce(s) in the first step; equal weights at "
        f"the end"
    )


def _shared_cores(cfg: Config, place: Place) -> str:
    if place.device != "cpu":
        return ""
    return "the ranks share this machine's cores, so two are no more than one"


def _once_faults(run: Run, against: Run) -> Iterator[str]:
    taken = [rank["evidence"].get("val_taken") for rank in run.ranks if "evidence" in rank]
    images = [image for epochs in taken if epochs for image in {*epochs[0]}]
    if twice := len(images) - len({*images}):
        yield f"ranks validated the same images, {twice} of them: each takes a share of its own"
    found, wanted = run.record.val_images, against.record.val_images
    if found != wanted:
        yield (
            f"the validation counted {found} images, and one process {wanted}: each rank a "
            f"share without repeats, then one all_reduce of the sums"
        )
    elif wanted and wanted % run.record.gpus == 0:  # as many as shares with a repeat would have
        yield (
            f"{wanted} validation images make equal shares, in which a repeated one is not "
            f"noticed: launch both runs with val_images={DDP_SETTINGS['val_images']}"
        )
    yield from _told_otherwise(run, against)
    writers = [rank["rank"] for rank in run.ranks if rank.get("weights_by")]
    if len(writers) != 1:
        yield f"weights.pt was written by ranks {writers or 'none'}: by one of them alone"


def _told_otherwise(run: Run, against: Run) -> Iterator[str]:
    """Figures of the validation about which ranks disagree, or which one process finds others."""
    told = [rank["epochs"][-1] for rank in run.ranks if rank.get("epochs")]
    names = [*told[0]] if told else []
    if unlike := [name for name in names if len({round(each[name], 6) for each in told}) > 1]:
        values = " and ".join(f"{each[unlike[0]]:.3g}" for each in told)
        yield (
            f"the ranks disagree about {', '.join(unlike)} ({values}): add up all that they "
            f"counted before you divide"
        )
    losses = run.record.val_loss, against.record.val_loss
    if all(losses) and not 1 / SAME_VAL_LOSS <= losses[0] / losses[1] <= SAME_VAL_LOSS:
        yield (
            f"the validation loss is {losses[0]:.3g}, and one process finds {losses[1]:.3g}: "
            f"add up sums and counts over the ranks, and divide once"
        )


def _once_seen(run: Run) -> str:
    return f"{run.record.val_images} images validated, each once; weights.pt written once"


# One run serves all three checks. Two epochs show whether shuffling differs; the batch gives each
# rank enough images for BatchNorm; the small learning rate keeps differences from growing. The
# number of validation images is odd and exceeds one rank's val_steps batches, so repeated or
# forgotten images change the count. Buckets that differ from DDP's default show whether the script
# passes bucket_mb on.
DDP_SETTINGS: dict[str, Any] = {
    "model": "resnet18",
    "image_px": 64,
    "epochs": 2,
    "steps": 3,
    "budget_s": 0.0,
    "batch_size": 16,
    "lr": 0.001,
    "val_images": 61,
    "save_weights": True,
    "bucket_mb": 10.0,
}

# Changes to DDP_SETTINGS at full size.
DDP_FULL_SIZE = {
    "model": "resnet50",
    "image_px": 224,
    "steps": 16,
    "batch_size": 128,
    "val_images": 253,
}


def _pair(gpus: int) -> Iterator[tuple[Config, int]]:
    """Yield the run at full size, on one GPU and on two."""
    yield from ((rung("device", **DDP_SETTINGS | DDP_FULL_SIZE), count) for count in (1, RANKS))


CHECKS = {
    "day2.ranks": Mechanism(
        title="a process for each device, all in one group",
        todo=7,
        rung="device",
        against="device",
        seen=_rank_seen,
        limits=_shared_cores,
        word="process_group",
        faults=_rank_faults,
        rehearsed=dry_runs.joining,
        settings=DDP_SETTINGS,
        gpus=RANKS,
        tolerance=SAME_LOSS,
        timed=False,
    ),
    "day2.data_parallel": Mechanism(
        title="every rank takes its share, and gradients are averaged",
        todo=8,
        rung="device",
        against="device",
        seen=_parallel_seen,
        limits=_shared_cores,
        word="sampler|DDP",
        faults=_parallel_faults,
        settings=DDP_SETTINGS,
        gpus=RANKS,
        tolerance=SAME_LOSS,
    ),
    "day2.once": Mechanism(
        title="validated and written once, not by every rank",
        todo=9,
        rung="device",
        against="device",
        seen=_once_seen,
        limits=_shared_cores,
        word="all_reduce|save_weights",
        faults=_once_faults,
        settings=DDP_SETTINGS,
        gpus=RANKS,
        tolerance=SAME_LOSS,
        timed=False,
    ),
}

LAB = Lab(
    number="2.2",
    title="one network, many GPUs",
    minutes=60,
    checks=CHECKS,
    recordings=(Recording("scaling", several=_pair),),
    jobs="3 to 7, most of 2 processes",
    prepare="two GPUs for each learner, or the CPU",
    stuck="batch size of a rank or of all; the lab's hang is meant",
)
