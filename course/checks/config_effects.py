"""What a run's config implies for its evidence: one table, by which every check compares.

A row says which fields of the config something follows from, what was really there (in the
evidence of one process, `course.training.evidence`), and what is due. All rows count for both runs
of a check; a check of a later day gets them by the fields that its rung changes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from course.checks import optimizer_steps as updates
from course.checks import saved_files as saved
from course.config import Config
from course.runs.record import PHASES
from course.runs.run import Run
from course.valid import TRACE_WAIT

Evidence = dict[str, Any]
SCALING = ("precision", "overflow_step")
LOADERS = ("workers", "persistent_workers", "prefetch_factor", "pin_memory")
TYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
# Of the first update's norm beside that of the run before. In fp16 it may be the third batch's,
# since a scaler leaves out steps until its scale fits; a forgotten scale is a factor of thousands.
NORMS_ALIKE = (0.4, 2.5)
ENOUGH = 8  # images, of which hardly ever all are paired with their own class
PIXELS = 0.03  # so far may means differ, by rounding to 16 bits


class Implied(NamedTuple):
    """One thing that a config implies.

    `seen` gives what was there, None where it cannot be known; `due` what should be. `told` says
    what to do where they differ; {seen} and {due} are filled in, of dicts those items that differ.
    Rows of the same fields have one cause, so that of them the first that differs is told.
    """

    fields: tuple[str, ...]
    seen: Callable[[Evidence, Config], Any]
    due: Callable[[Config, Run], Any]
    told: str


def _types(seen: Evidence, key: str, *at: str) -> list[str] | None:
    for each in at:
        seen = seen.get(each) or {}
    return sorted(TYPES.get(name, name) for name in seen[key]) if seen.get(key) else None


def _forward(*at: str) -> Callable[[Evidence, Config], list[str] | None]:
    def seen(evidence: Evidence, cfg: Config) -> list[str] | None:
        found = _types(evidence, "forward_types", *at)
        by_kernels = (evidence.get("algebra") or {}).get("form") == "kernels"
        # Kernels of the algebra take the first layer in fp16 always: cuDNN has none in bf16.
        is_bf16 = cfg.precision == "bf16" and by_kernels and found == ["bf16", "fp16"]
        return ["bf16"] if is_bf16 else found

    return seen


def _updated(seen: Evidence, cfg: Config) -> list[str] | None:
    """The types of what the optimizer changes; Muon's own products, in bf16, are no weights."""
    found = _types(seen, "updated_types")
    return ["fp32"] if cfg.optimizer == "muon" and found == ["bf16", "fp32"] else found


def _precision(cfg: Config, run: Run) -> list[str]:
    return ["fp32" if cfg.precision == "tf32" else cfg.precision]  # TF32 is no type of tensors


def _start_of_backward(*at: str) -> Callable[[Evidence, Config], str | None]:
    """What the loss is multiplied by before backward, in words where it depends on the data."""

    def seen(evidence: Evidence, cfg: Config) -> str | None:
        for each in at:
            evidence = evidence.get(each) or {}
        found = evidence.get("loss_gradient")
        if found is None or cfg.pipeline:  # it has several, and divides afterwards
            return None
        is_scaled = cfg.precision == "fp16" and found > 1
        return "scaled" if is_scaled else f"multiplied by {found:g}"

    return seen


def _due_start(cfg: Config, run: Run) -> str:
    # Where labels are single classes, PyTorch smooths beside the loss that is looked at.
    kept = 1 if cfg.mix else 1 - cfg.label_smoothing
    return "scaled" if cfg.precision == "fp16" else f"multiplied by {kept:g}"


def _loss_types(seen: Evidence, cfg: Config) -> list[str] | None:
    # Of soft labels only the softmax is seen, which autocast leaves in 16 bits on a GPU.
    return None if cfg.mix else _types(seen, "loss_types")


def _mixed(seen: Evidence, cfg: Config) -> str | None:
    """Has an image's label more than one class? Of few images, perhaps none by chance."""
    share, images = seen.get("mixed"), seen.get("share", 0)
    if share is None or cfg.label_smoothing or (cfg.mix and images < ENOUGH):
        return None
    return "several classes" if share else "one class each"


def _devices(seen: Evidence, cfg: Config) -> list[str] | None:
    return sorted(seen.get("devices") or []) or None if cfg.device == "cpu" else None


def _kinds(key: str, *at: str) -> Callable[[Evidence, Config], list[str] | None]:
    """What there was of layouts, or of the statistics by which BatchNorm normalised."""

    def seen(evidence: Evidence, cfg: Config) -> list[str] | None:
        for each in at:
            evidence = evidence.get(each) or {}
        return sorted({*evidence.get(key, {})} - {"either"}) or None

    return seen


def _inputs(*at: str) -> Callable[[Evidence, Config], list[str] | None]:
    """What has been on the host, or with another rank, comes in the order of its shape."""
    seen = _kinds("input_layouts", *at)
    return lambda evidence, cfg: None if cfg.offload or cfg.pipeline else seen(evidence, cfg)


def _only_layout(cfg: Config, run: Run) -> list[str]:
    return ["NHWC" if cfg.channels_last else "NCHW"]


def _weight_layout(cfg: Config, run: Run) -> list[str]:
    # fully_shard takes contiguous weights alone; in channels last the images are enough.
    return ["NCHW"] if cfg.shard else _only_layout(cfg, run)


def _loader(which: str) -> Callable[[Evidence, Config], dict[str, Any] | None]:
    """Arguments of one of the two DataLoaders, where the images are files."""

    def seen(evidence: Evidence, cfg: Config) -> dict[str, Any] | None:
        if cfg.data == "synthetic" or which not in evidence:
            return None
        # Of an older recording not all of them are known.
        found = {name: evidence[which][name] for name in LOADING if name in evidence[which]}
        if evidence.get("device", "cpu") == "cpu" and not found.get("pin_memory"):
            found.pop("pin_memory", None)  # there it pins nothing: see course.checks.dry_runs
        return found

    return seen


LOADING: dict[str, Callable[[Config], Any]] = {
    "num_workers": lambda cfg: cfg.workers,
    "persistent_workers": lambda cfg: cfg.persistent_workers,
    "prefetch_factor": lambda cfg: cfg.prefetch_factor if cfg.workers else None,
    "pin_memory": lambda cfg: cfg.pin_memory,
    "in_order": lambda cfg: True,
}


def _due_loading(cfg: Config, run: Run) -> dict[str, Any]:
    return {name: due(cfg) for name, due in LOADING.items()}


def _bucket(seen: Evidence, cfg: Config) -> str | None:
    found = (seen.get("ddp") or {}).get("bucket_mb")
    if found is None:
        return None
    # DDP keeps whole bytes.
    return f"{cfg.bucket_mb if math.isclose(found, cfg.bucket_mb, rel_tol=1e-3) else found:g}"


def _copies(seen: Evidence, cfg: Config) -> bool | None:
    """Does nobody wait for copies? Synthetic images are on the device anyway."""
    is_there = seen.get("device", "cpu") == "cpu" or cfg.data == "synthetic"
    return None if is_there or not cfg.non_blocking else seen.get("non_blocking")


def _group(name: str) -> Callable[[Evidence, Config], Any]:
    return lambda seen, cfg: (seen.get("group") or {}).get(name)


def _traced(seen: Evidence, cfg: Config) -> str | None:
    if "updates" not in seen:  # of an older recording, which noted nothing of it
        return None
    steps = seen.get("traced") or {}
    return _steps(f"{step}" if count == len(PHASES) else f"{step} in part"
                  for step, count in steps.items())  # fmt: skip


def _due_traced(cfg: Config, run: Run) -> str:
    return _steps(f"{TRACE_WAIT + each}" for each in range(cfg.profile_steps))


def _steps(names: Iterable[str]) -> str:
    found = [*names]
    return f"step{'s' * (len(found) > 1)} {', '.join(found)}" if found else "no step"


def _updated_numbers(seen: Evidence, cfg: Config) -> int | None:
    """Where ranks share a network out, each has its own part, of which its own check tells."""
    return None if cfg.tensor > 1 or cfg.pipeline else seen.get("parameters") or None


def _parameters(cfg: Config, run: Run) -> int | None:
    classes = run.record.evidence["classes"] or 1  # none: no last layer
    return model_size(cfg.model, classes, cfg.image_px if cfg.is_large else 224)


@lru_cache(maxsize=16)
def model_size(name: str, classes: int, image_px: int) -> int:
    """How many numbers training adjusts; of a ResNet as many whatever the image."""
    import torch

    from course.training import models

    with torch.device("meta"):
        return models.parameter_count(models.create(name, classes, image_px))


def _backend(seen: Evidence, cfg: Config) -> str | None:
    """Of CUDA's collectives, where ranks computed there; CPU ranks have no choice."""
    if not seen.get("device", "").startswith("cuda") or not seen.get("group"):
        return None
    backends = dict(each.split(":") for each in seen["group"]["backend"].split(","))
    return backends.get("cuda")


def _forward_collectives(seen: Evidence, cfg: Config) -> bool | None:
    """Is anything but DDP's broadcast of buffers sent there, unasked?"""
    if cfg.sync_batchnorm or cfg.tensor > 1 or "ddp" not in seen:
        return None
    return bool({*seen.get("forward_collectives", {})} - {"broadcast"})


IMPLIED: tuple[Implied, ...] = (
    Implied(("precision",), _forward(), _precision,
            "forward: the config asks for {due}, and the convolutions ran {seen}: enter "
            "`torch.autocast(…)` with dtype= and enabled= that follow cfg.precision"),
    Implied(("precision",), _forward("later"), _precision,
            "forward of a later step: the config asks for {due}, and the convolutions ran {seen}"),
    Implied(("precision",), _forward("validation"), _precision,
            "validation: the config asks for {due}, and the convolutions ran {seen}: hand "
            "`autocast` to validate"),
    Implied((), _kinds("statistics"), lambda cfg, run: ["batch"],
            "training normalised by {seen} statistics, which validation is for: model.train() at "
            "the beginning of each epoch"),
    Implied((), _kinds("statistics", "validation"), lambda cfg, run: ["running"],
            "validation normalised by {seen} statistics, so that an image's scores depend on its "
            "neighbours: eval() of the network that is validated, before it"),
    Implied(("precision",), lambda seen, cfg: _types(seen, "backward_types"), _precision,
            "backward: the config asks for {due}, and the convolutions ran {seen}"),
    Implied(("precision",), _updated,
            lambda cfg, run: ["fp32"],
            "the optimizer updates {seen} weights: they must stay fp32"),
    Implied(("precision",), lambda seen, cfg: seen.get("autocast_in_backward"),
            lambda cfg, run: False,
            "autocast was still on in backward: only the forward pass and the loss lie inside"),
    Implied(SCALING, _start_of_backward(), _due_start,
            "backward started from a loss that was {seen}; with this precision it is to be {due}"),
    Implied(SCALING, _start_of_backward("later"), _due_start,
            "in a later step backward started from a loss that was {seen}, not {due}"),
    Implied(SCALING, updates.overflow, lambda cfg, run: "skipped",
            "a gradient was made infinite on purpose, and the optimizer {seen} it: one scaler for "
            "all steps, whose step(optimizer) leaves such a step out, and update() in each"),
    Implied(SCALING, updates.scale_after, lambda cfg, run: "smaller",
            "after a gradient that overflowed the scale is {seen}: make one scaler before the "
            "loop, and update() it in every step"),
    Implied(("mix",), _mixed,
            lambda cfg, run: "several classes" if cfg.mix else "one class each",
            "the labels that the loss was computed of have {seen}, and the config asks for {due}: "
            "mix if cfg.mix says so, in the loop, and give back the labels with the images"),
    Implied(("precision",), _loss_types, lambda cfg, run: ["fp32"],
            "the loss was computed in {seen}, which keeps three digits: it belongs under autocast, "
            "which takes fp32 there"),
    Implied(("profile_steps",), _traced, _due_traced,
            "the profiler traced {seen}, and the config asks for {due}: profiling.schedule(cfg), "
            "and a profiler.step() at the end of every step"),
    Implied(("model",), _updated_numbers, _parameters,
            "the optimizer updates {seen:,} numbers, and cfg.model has {due:,}: "
            "models.create(cfg.model, sets.classes) makes it"),
    Implied(("device",), _devices, lambda cfg, run: ["cpu"],
            'the convolutions ran on {seen}: use the accelerator only if cfg.device == "auto"'),
    Implied(("channels_last",), _inputs(), _only_layout,
            "the convolutions' inputs lay as {seen}, and the config asks for {due}"),
    Implied(("channels_last",), _inputs("later"), _only_layout,
            "in a later step inputs lay as {seen}, and the config asks for {due}"),
    Implied(("channels_last",), _kinds("weight_layouts"), _weight_layout,
            "the convolutions' weights lay as {seen}, and the config asks for {due}"),
    Implied(updates.OPTIMIZER, updates.settings, updates.due_settings,
            "the optimizer has {seen}, and the config asks {due}"),
    Implied(updates.OPTIMIZER, updates.decays, updates.due_decays,
            "weight decay: the optimizer has {seen}, and the config asks {due}: filters and "
            "matrices have two dimensions or more, BatchNorm's weights and biases one"),
    Implied((), updates.counts, lambda cfg, run: "1",
            "the optimizer stepped {seen} times in a step: one update a batch"),
    Implied((), lambda seen, cfg: seen.get("optimizers") or None, lambda cfg, run: 1,
            "{seen} optimizers updated the weights: a new one has no momentum yet"),
    Implied(LOADERS, _loader("loader"), _due_loading,
            "the training DataLoader has {seen}, and the config asks {due}"),
    Implied(LOADERS, _loader("val_loader"), _due_loading,
            "the validation DataLoader has {seen}, and the config asks {due}"),
    Implied(("format",), lambda seen, cfg: (seen.get("loader") or {}).get("streams"),
            lambda cfg, run: cfg.format == "shards" and cfg.data != "synthetic",
            "training images came from shards: {seen}, and the config asks: {due}. Take "
            "`Shards(…)` for sets.train only where cfg.format is \"shards\""),
    Implied(("seed",), lambda seen, cfg: (seen.get("loader") or {}).get("own_worker_init"),
            lambda cfg, run: False,
            "the training DataLoader has a worker_init_fn: PyTorch seeds each worker otherwise, "
            "and one that seeds them alike gives all of them the same crops. Leave it out"),
    Implied(("bucket_mb",), _bucket, lambda cfg, run: f"{cfg.bucket_mb:g}",
            "DDP has bucket_cap_mb={seen}, and the config asks {due}: cfg.bucket_mb"),
    Implied(("find_unused",), lambda seen, cfg: (seen.get("ddp") or {}).get("find_unused"),
            lambda cfg, run: cfg.find_unused,
            "DDP has find_unused_parameters={seen}, and the config asks {due}: cfg.find_unused"),
    Implied(("non_blocking",), _copies, lambda cfg, run: True,
            "all copies to the device wait: give both .to(device) non_blocking=cfg.non_blocking"),
    Implied(("device",), _backend, lambda cfg, run: "nccl",
            "GPUs sent their gradients through {seen}, by way of the host: leave the backend to "
            "init_process_group"),
    Implied(("sync_batchnorm",), _forward_collectives, lambda cfg, run: False,
            "the ranks spoke in the forward pass, as SyncBatchNorm does: only if "
            "cfg.sync_batchnorm"),
    Implied((), lambda seen, cfg: (seen.get("ddp") or {}).get("broadcast_buffers"),
            lambda cfg, run: True,
            "DDP has broadcast_buffers={seen}: each rank keeps BatchNorm's statistics of its own"),
    Implied(("collective_timeout_s",), _group("timeout_s"),
            lambda cfg, run: float(cfg.collective_timeout_s),
            "the process group waits {seen:g} s for a rank, and the config asks {due:g}: "
            "timeout=timedelta(seconds=cfg.collective_timeout_s)"),
)  # fmt: skip


def differences(run: Run, known: set[Any] | None = None) -> Iterator[str]:
    """What was otherwise in a run than its config implies, each cause once, in any of its ranks.

    Args:
        known: causes that are told already, and are left out; those told here are added.
    """
    ranks = [rank["evidence"] for rank in run.ranks] or [run.record.evidence]
    causes = set() if known is None else known
    for row in IMPLIED:
        for evidence in ranks:
            if (cause := row.fields or row.told) in causes:
                break
            seen = row.seen(evidence, run.config)
            if seen is None or seen == (due := row.due(run.config, run)):
                continue
            if isinstance(seen, dict):
                names = [name for name in seen if seen[name] != due[name]]
                if not names:  # of what is due it tells a part
                    continue
                seen, due = ({name: each[name] for name in names} for each in (seen, due))
            causes.add(cause)
            yield row.told.format(seen=_said(seen), due=_said(due))
    yield from saved.weights(run)


def unlike(run: Run, against: Run) -> Iterator[str]:
    """What both runs should have had alike, whatever their configs: images, and first gradients."""
    seen, before = run.record.evidence, against.record.evidence
    shown = ("workers", "format", "randaugment", "mix", "start_px", "micro_batch")
    same = all(getattr(run.config, name) == getattr(against.config, name) for name in shown)
    same = same and run.record.gpus == 1 and not seen.get("began_at")  # its first lie behind
    if same and not _near(seen.get("pixels"), before.get("pixels")):
        yield (
            f"the first images have means and roughness {seen['pixels']}, and those of the "
            f"{against.config.rung} run {before['pixels']}: the network must see the same pixels"
        )
    norm, other = seen.get("gradient_norm"), before.get("gradient_norm")
    alike = not (norm and other) or NORMS_ALIKE[0] <= norm / other <= NORMS_ALIKE[1]
    same = run.record.gpus == 1 and run.config.mix == against.config.mix  # mixed ones are smaller
    if same and not alike and not seen.get("began_at"):
        yield (
            f"the first gradients that the optimizer got are {norm / other:.3g} times those of "
            f"the {against.config.rung} run: nothing but their rounding may differ"
        )


def _near(found: list[float] | None, other: list[float] | None) -> bool:
    pairs = zip(found or [], other or [])
    return all(math.isclose(a, b, rel_tol=PIXELS, abs_tol=PIXELS) for a, b in pairs)


def _said(value: Any) -> Any:
    if isinstance(value, dict):
        return ", ".join(f"{name}={each}" for name, each in value.items())
    return " and ".join(map(str, value)) if isinstance(value, list) else value
