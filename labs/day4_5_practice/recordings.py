"""Lab 4.5's runs on a machine that is recorded: what the same bits cost, and what saving costs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from course.checks.lab import FULL_SIZE, SYNTHETIC, Recording
from course.config import Config, rung

EVERY = 8  # steps between checkpoints, far more often than anybody would: to see what one costs
# CoAtNet-3, whose weights and Adam's two numbers for each are 2 GB.
LARGE: dict[str, Any] = SYNTHETIC | {
    "model": "coatnet_3_224",
    "fused": True,
    "batch_size": 128,
    "steps": 32,
    "warmup_steps": 8,
}


def repeated(time: str = "first", *, deterministic: bool = False, **own: Any) -> Config:
    """ResNet-50 on a GPU that is kept busy; once more, with the same seed, under another label.

    Args:
        time: of the label alone, "first" or "again".
        own: fields of the config that are otherwise.
    """
    config = rung("channels_last", **FULL_SIZE | own)
    words = ["repeatable"] * deterministic + [config.precision, time]
    named = {"rung": "-".join(words), "deterministic": deterministic}
    return rung("channels_last", **FULL_SIZE | own | named)


# So seldom that the thread is done with one before the next is due.
SELDOM: dict[str, Any] = {"save_every": 24, "steps": 56}


def saving(how: str, *, large: bool = False, seldom: bool = False, **own: Any) -> Config:
    """A training that writes a checkpoint every 8 steps.

    Args:
        how: "never"; "torch.save", while training waits; or "async_save", by a thread.
        large: CoAtNet-3 instead of ResNet-50.
        seldom: every 24 steps instead.
        own: fields of the config that are otherwise.
    """
    ways = {"never": {}, "torch.save": {"save_every": EVERY}}
    ways["async_save"] = {"save_every": EVERY, "async_save": True}
    size, base = (LARGE, "large") if large else (FULL_SIZE, "channels_last")
    settings = size | ways[how] | (SELDOM if seldom else {}) | own
    named = f"saving-{how.replace('.', '-')}" + "-large" * large + "-seldom" * seldom
    return rung(base, **settings | {"rung": named})


def _practice() -> Iterator[Config]:
    """What matters most first."""
    for time in ("first", "again"):
        for deterministic in (False, True):
            yield repeated(time, deterministic=deterministic, precision="fp16")
    yield from (saving(how) for how in ("never", "torch.save", "async_save"))
    yield repeated(deterministic=True, precision="bf16")  # beside the one that never saves
    yield from (saving(how, large=True) for how in ("never", "torch.save", "async_save"))
    yield saving("async_save", large=True, seldom=True)


RECORDINGS = (Recording("practice", [*_practice()]),)
