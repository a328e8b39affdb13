"""Refuse combinations of a config's fields that would be silently wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

CROPS_PX = 32  # side of the images of data="crops"
HALF_FORMATS = ("bf16", "fp16")  # "half" is the first one that a device has hardware for
TRACE_WAIT = 2  # steps before a trace: one to wait, and one in which the profiler warms up
ANY = object()  # any value but the default
ONE_OR_MORE = range(1, 2**63)
SHARDS = ["zero3", "zero2", "hybrid"]
SCHEDULES = ["1f1b", "gpipe", "interleaved", "zero_bubble"]

# Fields that only one training script reads: a config that sets one of them needs that script.
SCRIPT_FIELDS = {
    "train_parallel.py": ("tensor", "pipeline", "stage_split"),
    "train_restarted.py": (
        "save_every", "async_save", "deterministic", "sigterm_step", "sigkill_step",
    ),
    "train_sharded.py": (
        "micro_batch", "checkpointing", "offload", "shard", "gather_bf16", "prefetch", "clip",
        "save_shards", "resume",
    ),
}  # fmt: skip
# Unsupported by a script: fields that must keep their default, and single values.
_DAY_4 = (
    "algebra", "ema", "norm_decay", "sync_batchnorm", "find_unused", "randaugment=device",
    "schedule=find", "optimizer=schedulefree", "format=shards",
)  # fmt: skip
UNSUPPORTED = {
    "train_sharded.py": (*_DAY_4, "mix"),
    "train_parallel.py": (
        *_DAY_4, *SCRIPT_FIELDS["train_restarted.py"], "mix", "save_weights", "compile",
        "checkpointing", "offload", "gather_bf16", "prefetch", "clip", "save_shards", "resume",
    ),
    "train_restarted.py": (
        *_DAY_4, *SCRIPT_FIELDS["train_sharded.py"], "compile", "profile_steps", "randaugment",
        "start_px", "budget_s", "drop_last", "data=crops", "format=gpu_decode",
    ),
}  # fmt: skip
# A field, some of its values, the values that they require of other fields, and the reason.
RULES: list[tuple[str, Any, dict[str, Sequence[Any]], str]] = [
    ("epochs", range(2, 2**63), {"budget_s": [0]}, "training may stop in any epoch"),
    ("schedule", ANY, {"budget_s": [0]}, "training may stop before the schedule ends"),
    ("persistent_workers", [True], {"workers": ONE_OR_MORE}, "there is no worker to keep"),
    ("data", ["synthetic"], {"randaugment": [""], "start_px": [0]}, "no file becomes an image"),
    ("format", ["shards"], {"data": ["default", "imagenet"]}, "only files are stored in shards"),
    ("format", ["shards"], {"drop_last": [True]}, "shards are read without end"),
    ("format", ["shards", "gpu_decode"], {"start_px": [0]}, "crops cannot grow in this format"),
    ("format", ["gpu_decode"], {"uint8": [True]}, "the device decodes to bytes"),
    ("format", ["gpu_decode"], {"randaugment": ["device", ""]}, "workers do not decode the images"),
    ("randaugment", ["device"], {"uint8": [True]}, "it changes images that arrive as bytes"),
    ("data", ["crops"], {"image_px": [CROPS_PX], "start_px": [0]}, "crops have 32 × 32 pixels"),
    ("data", ["crops"], {"workers": [0], "format": ["files"]}, "crops are stored on the device"),
    ("data", ["crops"], {"uint8": [True], "pin_memory": [False]}, "the device stores their bytes"),
    ("data", ["crops"], {"randaugment": ["device", ""]}, "no worker loads them"),
    ("fused", [True], {"optimizer": ["sgd", "nesterov", "adamw"]}, "PyTorch fuses only these"),
    ("optimizer", ["schedulefree"], {"schedule": [""]}, "it averages weights instead"),
    ("schedule", ["one_cycle", "find"], {"lr_warmup": [0]}, "it has its own warm-up"),
    ("schedule", ["find"], {"steps": range(2, 2**63)}, "the rate grows from step to step"),
    ("algebra", [True], {"model": ["resnet50", "resnet101", "resnet152"]}, "it needs bottlenecks"),
    ("algebra", [True], {"compile": [""]}, "each replaces the step in a different way"),
    ("algebra", [True], {"sync_batchnorm": [False]}, "it takes statistics of each rank's images"),
    ("gather_bf16", [True], {"shard": SHARDS}, "it changes how shards are gathered"),
    ("gather_bf16", [True], {"precision": ["half", "bf16"]}, "it gathers weights in bf16"),
    ("prefetch", ANY, {"shard": SHARDS}, "it changes how shards are gathered"),
    ("prefetch", ANY, {"unit_blocks": ONE_OR_MORE}, "there is one unit, and none to gather ahead"),
    ("shard", ANY, {"micro_batch": [0]}, "only DDP has no_sync(), which accumulates gradients"),
    ("resume", ANY, {"schedule": [""], "lr_warmup": [0]}, "shards do not save the learning rate"),
    ("stage_split", ANY, {"pipeline": SCHEDULES}, "only a pipeline has stages"),
    ("tensor", ANY, {"pipeline": [""]}, "train_parallel.py splits layers or stages, not both"),
    ("tensor", ANY, {"micro_batch": [0]}, "only stages compute micro-batches"),
    ("tensor", ANY, {"shard": ["zero3", ""]}, "train_parallel.py has only this kind of shards"),
    ("pipeline", ANY, {"shard": [""]}, "train_parallel.py does not shard stages"),
    ("hosts", ANY, {"device": ["auto"]}, "only NCCL, on GPUs, can pretend hosts"),
    ("async_save", [True], {"save_every": ONE_OR_MORE}, "no checkpoint is written"),
]


def check(cfg: Any) -> None:
    """Raise ValueError if this Config is invalid: which value, why, and what to choose."""
    for problem in (*_out_of_range(cfg), *_broken_rules(cfg), *_unsupported(cfg)):
        raise ValueError(problem)


def _broken_rules(cfg: Any) -> Iterator[str]:
    for field, values, required, why in RULES:
        if not cfg.changed(field) if values is ANY else getattr(cfg, field) not in values:
            continue
        for name, allowed in required.items():
            if (value := getattr(cfg, name)) not in allowed:
                is_range = isinstance(allowed, range)
                choices = f"{allowed[0]} or more" if is_range else " or ".join(map(repr, allowed))
                pair = f"{name}={value!r} with {field}={getattr(cfg, field)!r}"
                yield f"{pair}: {why}. Set {name}={choices}, or change {field}"


def _unsupported(cfg: Any) -> Iterator[str]:
    for entry in UNSUPPORTED.get(cfg.script, ()):
        name, sign, value = entry.partition("=")
        if getattr(cfg, name) == value if sign else cfg.changed(name):
            cause = [*cfg.changed(*SCRIPT_FIELDS[cfg.script]), "model"][0]
            cause = f"{cause}={getattr(cfg, cause)!r} needs {cfg.script}, which does not support it"
            yield f"{name}={getattr(cfg, name)!r}: {cause}. Set {name}={getattr(type(cfg), name)!r}"


def _out_of_range(cfg: Any) -> Iterator[str]:
    steps = cfg.steps * cfg.epochs
    if cfg.precision == "fp16" and not cfg.scales_loss:
        why = f"{cfg.script} does not scale the loss, so small gradients would become 0"
        yield f"precision='fp16': {why}. Set precision='half' or 'bf16'"
    if not re.fullmatch(r"\w[\w.-]*", cfg.rung):  # it names the run's folder
        yield f"rung={cfg.rung!r}: use letters, digits, and _ . - between them"
    for name in ("warmup_steps", "lr_warmup", "sigterm_step", "sigkill_step"):
        if (value := getattr(cfg, name)) >= steps:
            yield f"{name}={value} leaves none of the {steps} steps: raise steps or lower {name}"
    least = TRACE_WAIT + cfg.profile_steps + 1  # one more step, in which the trace is written
    if cfg.profile_steps and cfg.warmup_steps < least:
        why = "traced steps are slower, so they must not be measured"
        yield f"profile_steps={cfg.profile_steps} needs warmup_steps={least} or more: {why}"
    for name, limit_field in (("micro_batch", "batch_size"), ("start_px", "image_px")):
        if (value := getattr(cfg, name)) > (limit := getattr(cfg, limit_field)):
            yield f"{name}={value} is more than {limit_field}={limit}: choose {limit} or less"
    for name in ("start_px", *["image_px"] * cfg.is_timm):
        if (value := getattr(cfg, name)) % 32:
            yield f"{name}={value}: {cfg.model} halves images five times; choose a multiple of 32"
    if cfg.pipeline and cfg.batch_size % (cfg.micro_batch or cfg.batch_size):
        why = "stages exchange tensors of one shape"
        yield f"micro_batch={cfg.micro_batch}: {why}; choose a divisor of {cfg.batch_size}"
    if not re.fullmatch(r"gflop|weights|[1-9]\d*(,[1-9]\d*)*", cfg.stage_split):
        choices = '"gflop", "weights", or numbers of blocks as in "4,9"'
        yield f"stage_split={cfg.stage_split!r}: choose {choices}"
