"""The ladder of rungs as data, and sweeps."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

from course.config import scripts  # noqa: F401 - their classes are needed from here on
from course.config.common import Config, change, convert
from course.config.rules import CROPS_PX
from course.text import closest

# Complete trainings (docs/imagenet.md): on all images, with all cores.
FULL_TRAINING = {
    "data": "imagenet", "epochs": 90, "steps": 0, "val_steps": -1, "warmup_steps": 50,
    "workers": -1, "persistent_workers": True, "prefetch_factor": 4, "pin_memory": True,
    "non_blocking": True, "weight_decay": 1e-4, "save_weights": True, "tracker": "tensorboard",
    "save_every": 500, "async_save": True,
    "collective_timeout_s": 600,  # ranks list and validate images at different speeds
}  # fmt: skip
# torchvision's first recipe: the defaults of references/classification/train.py, for 8 × 32 images.
TORCHVISION_V1 = {"batch_size": 256, "lr": 0.1, "lr_batch": 256, "schedule": "step"}
# ffcv-imagenet's rn50_configs/rn50_56_epochs.yaml, for 8 × 512 images, but without BlurPool and
# with averaged weights; and the course's fastest step.
FFCV_56 = {
    "epochs": 56, "batch_size": 1024, "lr": 1.7, "lr_batch": 4096, "lr_warmup_epochs": 2,
    "schedule": "linear", "label_smoothing": 0.1, "norm_decay": False, "ema": 0.993,
    "start_px": 160, "start_ramp": 41, "end_ramp": 48, "image_px": 192, "val_px": 256,
    "flip_tta": True, "algebra": True, "fused": True, "format": "gpu_decode",
}  # fmt: skip
# Each rung: the previous rung, and what it changes. It is one field, so that a change in speed has
# one cause, except for Day 4's large network and complete trainings.
_RUNG_CHANGES: dict[str, tuple[str, dict[str, Any]]] = {
    "device": ("baseline", {"device": "auto"}),
    "amp": ("device", {"precision": "half"}),
    "channels_last": ("amp", {"channels_last": True}),
    "dataloader": ("channels_last", {"workers": 8}),
    "fused": ("channels_last", {"fused": True}),
    "compile": ("fused", {"compile": "default"}),
    "autotune": ("compile", {"compile": "max-autotune-no-cudagraphs"}),
    "algebra": ("fused", {"algebra": True}),
    "shards": ("dataloader", {"format": "shards"}),
    "small": ("dataloader", {"format": "small"}),
    "raw": ("small", {"format": "raw"}),
    "gpu_decode": ("dataloader", {"format": "gpu_decode"}),
    "randaugment": ("dataloader", {"randaugment": "cpu"}),
    "randaugment_device": ("randaugment", {"randaugment": "device"}),
    "label_smoothing": ("dataloader", {"label_smoothing": 0.1}),
    "mixup": ("dataloader", {"mix": "mixup"}),
    "cutmix": ("mixup", {"mix": "cutmix"}),
    "progressive": ("dataloader", {"start_px": 128}),
    "no_norm_decay": ("channels_last", {"norm_decay": False}),
    "find": ("channels_last", {"schedule": "find"}),
    "large": (
        "channels_last",
        {"model": "coatnet_pico_rw_224", "optimizer": "adamw", "lr": 1e-3, "weight_decay": 0.05},
    ),
    "accumulated": ("large", {"micro_batch": 16}),
    "checkpointed": ("large", {"checkpointing": "every"}),
    "offloaded": ("large", {"offload": True}),
    "sharded": ("large", {"shard": "zero3"}),
    "tensor": ("large", {"tensor": 2}),
    "pipeline": ("large", {"pipeline": "1f1b", "micro_batch": 2}),
    "restarted": ("channels_last", {"script": "train_restarted.py", "save_every": 8}),
    "gpt": (
        "device",
        {"script": "train_gpt.py", "batch_size": 16, "steps": 32, "lr": 2e-3, "lr_warmup": 4}
        | {"schedule": "cosine", "weight_decay": 0.1, "clip": 1.0},
    ),
    "gpt_half": ("gpt", {"precision": "half"}),
    "gpt_attention": ("gpt_half", {"attention": "sdpa"}),
    "gpt_compile": ("gpt_attention", {"compile": "default"}),
    "gpt_vocabulary": ("gpt_compile", {"vocabulary_multiple": 64}),
    "gpt_fused": ("gpt_vocabulary", {"fused": True}),
    "imagenet": ("channels_last", FULL_TRAINING | TORCHVISION_V1),
    "imagenet_fast": ("channels_last", FULL_TRAINING | FFCV_56),
}
RUNGS: dict[str, Config] = {"baseline": Config()}
for _name, (_before, _change) in _RUNG_CHANGES.items():
    RUNGS[_name] = change(RUNGS[_before], {"rung": _name} | _change)
# What `course ladder` runs, and the rungs after channels_last that it runs only with --compile,
# because compiling ResNet-50 takes minutes on a small machine.
_LADDER_NAMES = ("baseline", "device", "amp", "channels_last", "dataloader")
LADDER: dict[str, Config] = {name: RUNGS[name] for name in _LADDER_NAMES}
# Sizes at which machines are recorded.
SYNTHETIC = {"data": "synthetic", "val_steps": 0, "epochs": 1}
FULL_SIZE = SYNTHETIC | {"batch_size": 256, "steps": 60, "warmup_steps": 20}  # a large GPU is busy
COMPILED = ("fused", "compile")
# The same of other scripts.
LADDERS = {
    "train_gpt.py": (
        ("gpt", "gpt_half", "gpt_attention"),
        ("gpt_compile", "gpt_vocabulary", "gpt_fused"),
    )
}

# Small enough for two CPU cores, and large enough to show the effect of a rung: with fewer pixels,
# the fixed cost of a step hides it. The learning rate is scaled with the batch.
QUICK: dict[str, Any] = {
    "image_px": 144,
    "batch_size": 8,
    "epochs": 1,
    "steps": 64,
    "warmup_steps": 2,
    "val_steps": 2,
    "budget_s": 8.0,
    "lr": 0.003,
}


def rung(name: str, *, quick: bool = False, **changes: Any) -> Config:
    """Return a rung of the ladder, with settings changed.

    Its class is that of the rung's script, or of the first script that has a changed setting which
    the rung's script lacks; `script` chooses one.

    Args:
        name: a key of `RUNGS`.
        quick: reduce images, batch and steps so that two CPU cores need only seconds.
        changes: settings to change; text is converted to the setting's type.

    Raises:
        ValueError: an unknown rung, setting or value (the message lists the valid ones), or a
            setting that only other scripts have.
    """
    if name not in RUNGS:
        listed = ", ".join(RUNGS)
        raise ValueError(f"no rung {name!r}{closest(str(name), RUNGS)}: the ladder has {listed}")
    small = QUICK | {"workers": min(RUNGS[name].workers, 2)} if quick else {}
    if changes.get("data") == "crops":
        small = small | {"image_px": CROPS_PX, "workers": 0}
    return change(RUNGS[name], changes, optional=small)


def vary(config: Config, **values: Iterable[Any]) -> list[Config]:
    """Return a sweep: a config for each value of a setting, or for each combination of several.

    Each is labelled with its values (`device-batch_size-32`), to distinguish it from its rung.
    Raises ValueError without a setting or values.
    """
    lists = {key: [] if isinstance(v, str) else [*v] for key, v in values.items()}
    if not lists or not all(lists.values()):
        raise ValueError("name a field and its values, as in vary(config, batch_size=[8, 16, 32])")
    configs = []
    for combination in itertools.product(*lists.values()):
        changes = {key: convert(key, value) for key, value in zip(values, combination)}
        label = "-".join([config.rung, *(f"{key}-{value}" for key, value in changes.items())])
        configs.append(change(config, changes | {"rung": label}))
    return configs
