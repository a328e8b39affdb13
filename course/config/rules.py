"""Combinations of settings that would be silently wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

CROPS_PX = 32  # side of the images of data="crops"
TRACE_WAIT = 2  # steps before a trace: one to wait, and one in which the profiler warms up
ANY = object()  # any value but the default
ONE_OR_MORE = range(1, 2**63)

# A setting, some of its values, the values that they require of other settings, and the reason.
Rule = tuple[str, Any, dict[str, Sequence[Any]], str]
COMMON: tuple[Rule, ...] = (  # of settings that all scripts have
    ("epochs", range(2, 2**63), {"budget_s": [0]}, "training may stop in any epoch"),
    ("schedule", ANY, {"budget_s": [0]}, "training may stop before the schedule ends"),
    ("hosts", ANY, {"device": ["auto"]}, "only NCCL, on GPUs, can simulate hosts"),
)
IMAGES: tuple[Rule, ...] = (  # of settings that all scripts for images have
    *COMMON,
    ("persistent_workers", [True], {"workers": ONE_OR_MORE}, "there is no worker to keep"),
    ("data", ["synthetic"], {"randaugment": [""], "start_px": [0], "val_px": [0]},
     "no file becomes an image"),
    ("data", ["synthetic"], {"steps": ONE_OR_MORE, "val_steps": range(2**63)},
     "one batch is repeated without end"),
    ("format", ["shards"], {"start_px": [0]}, "crops cannot grow in this format"),
    ("format", ["gpu_decode"], {"uint8": [True]}, "the device decodes to bytes"),
    ("format", ["gpu_decode"], {"randaugment": ["device", ""]}, "workers do not decode the images"),
    ("randaugment", ["device"], {"uint8": [True]}, "it changes images that arrive as bytes"),
    ("data", ["crops"], {"image_px": [CROPS_PX], "start_px": [0], "val_px": [0]},
     "crops have 32 × 32 pixels"),
    ("data", ["crops"], {"workers": [0], "format": ["files"]}, "crops are stored on the device"),
    ("data", ["crops"], {"uint8": [True], "pin_memory": [False]}, "the device stores their bytes"),
    ("data", ["crops"], {"randaugment": ["device", ""]}, "no worker loads them"),
    ("fused", [True], {"optimizer": ["sgd", "nesterov", "adamw"]}, "PyTorch fuses only these"),
    ("schedule", ["one_cycle", "find"], {"lr_warmup": [0]}, "it has its own warm-up"),
)  # fmt: skip
RESTARTS: tuple[Rule, ...] = (
    ("async_save", [True], {"save_every": ONE_OR_MORE}, "nothing is written"),
    ("save_every", ANY, {"drop_last": [True]}, "a step's number decides its epoch"),
)


def broken(cfg: Any) -> Iterator[str]:
    """Yield the rules that a config breaks: two values, why they do not fit, and what to choose."""
    for field, values, required, why in cfg.RULES:
        value = getattr(cfg, field)
        if value == getattr(type(cfg), field, value) if values is ANY else value not in values:
            continue
        for name, allowed in required.items():
            other = getattr(cfg, name)
            if other not in allowed and (other, allowed) != (-1, ONE_OR_MORE):  # -1: all
                is_range = isinstance(allowed, range)
                choices = f"{allowed[0]} or more" if is_range else " or ".join(map(repr, allowed))
                pair = f"{name}={other!r} with {field}={value!r}"
                yield f"{pair}: {why}. Set {name}={choices}, or change {field}"
