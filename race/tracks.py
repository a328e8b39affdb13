"""The tracks of the race: what is to be reached, on what, and within which time."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from course.config import Config, from_dict

SURE = 0.01  # an entry counts if, were its mean no better than the target, this were less likely
# What the race decides, and no script may set otherwise.
FIXED: dict[str, Any] = {
    "data": "crops",
    "image_px": 32,
    "format": "files",
    "workers": 0,
    "val_steps": 0,
    "save_weights": True,
    "save_shards": False,
    "profile_steps": 0,
    "budget_s": 0.0,
    "warmup_steps": 0,
}
OWN = ("device", "seed", "rung")  # which the track and the race's draw decide


@dataclass(frozen=True)
class Track:
    """A distance to run: the accuracy to reach, and what it is reached on.

    target: top-1 accuracy on the validation crops. budget_s: for a run, from the beginning of its
    script to its written weights. seeds: how many runs an entry has, at least.
    """

    name: str
    title: str
    target: float
    budget_s: float
    seeds: int
    device: str = "auto"
    most_gpus: int = 1

    def config(self, settings: dict[str, Any], name: str, seed: int) -> Config:
        """What a run of an entry computes.

        Raises:
            ValueError: a setting that the race decides, or that a Config does not know.
        """
        refuse_fixed(settings)
        beginning: dict[str, Any] = {"precision": "half", "channels_last": True}
        own = {"device": self.device, "seed": seed, "rung": f"race-{self.name}-{plain(name)}"}
        return from_dict(beginning | settings | FIXED | own)


def plain(name: str) -> str:
    """A name as one of a folder: letters, digits, and _ . - between them."""
    return re.sub(r"[^\w.-]+", "-", name).strip("-.") or "entry"


def refuse_fixed(settings: dict[str, Any]) -> None:
    """Raise ValueError for a setting that is not a script's to choose."""
    for name in (*FIXED, *OWN):
        if name in settings:
            raise ValueError(
                f"SETTINGS has {name}={settings[name]!r}: the race decides that, for all entries "
                f"alike. Leave it out"
            )


TRACKS = {
    track.name: track
    for track in (
        Track("quick", "a processor, in seconds: to try things out", 0.15, 60, 3, device="cpu"),
        Track("cpu", "a processor", 0.68, 300, 4, device="cpu"),
        Track("gpu", "one GPU", 0.78, 120, 4),
        Track("node", "all GPUs of a node", 0.78, 120, 4, most_gpus=8),
    )
}


def get(name: str) -> Track:
    """A track by its name. Raises ValueError, with a list of them, where there is none."""
    if name not in TRACKS:
        raise ValueError(f"no track {name!r}: choose {', '.join(TRACKS)}")
    return TRACKS[name]
