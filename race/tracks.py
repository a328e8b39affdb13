"""The tracks of the race: the accuracy to reach, on which device, and the time limit."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from course import Config
from course.lab import from_dict

if TYPE_CHECKING:
    import pandas as pd

SIGNIFICANCE = 0.01  # an entry counts if its p-value is below this
# These settings are the same for all entries.
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


@dataclass(frozen=True)
class Track:
    """A track of the race.

    Attributes:
        target: top-1 accuracy to exceed on the validation crops.
        budget_s: time limit of a run, from the script's start to its written weights.
        seeds: minimum number of runs per entry.
    """

    name: str
    title: str
    target: float
    budget_s: float
    seeds: int
    device: str = "auto"
    max_gpus: int = 1

    def config(self, settings: dict[str, Any], name: str, seed: int) -> Config:
        """Return the config of one run of an entry.

        Raises:
            ValueError: the race decides a setting, or `Config` does not have it.
        """
        for field in (*FIXED, "device", "seed", "rung"):
            if field in settings:
                raise ValueError(
                    f"SETTINGS has {field}={settings[field]!r}: the race decides that, for all "
                    f"entries. Remove it"
                )
        defaults: dict[str, Any] = {"precision": "half", "channels_last": True}
        rung = f"race-{self.name}-{file_name(name)}"
        fixed = FIXED | {"device": self.device, "seed": seed, "rung": rung}
        return from_dict(defaults | settings | fixed)


def file_name(name: str) -> str:
    """Turn a name into a folder's name: letters, digits, and _ . - between them."""
    return re.sub(r"[^\w.-]+", "-", name).strip("-.") or "entry"


TRACKS = {
    track.name: track
    for track in (
        Track("quick", "a CPU, in seconds: to try things out", 0.15, 60, 3, device="cpu"),
        Track("cpu", "a CPU", 0.68, 300, 4, device="cpu"),
        Track("gpu", "one GPU", 0.78, 120, 4),
        Track("node", "all GPUs of a node", 0.78, 120, 4, max_gpus=8),
    )
}


def find_track(name: str) -> Track:
    """Return a track by its name."""
    if name not in TRACKS:
        raise ValueError(f"no track {name!r}: choose {', '.join(TRACKS)}")
    return TRACKS[name]


def tracks_table() -> pd.DataFrame:
    """List what each track requires."""
    import pandas as pd

    columns = ["name", "title", "target", "budget_s", "seeds"]
    table = pd.DataFrame(map(vars, TRACKS.values()))[columns]
    return table.rename(columns={"name": "track", "title": "on"})
