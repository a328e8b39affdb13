"""Where do jobs run? Sites are entries of sites.toml, and of the user's own file over it."""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from platformdirs import user_config_path

EXECUTORS = ("local",)


@dataclass(frozen=True)
class Site:
    """A place that runs jobs, and what it needs to know for that."""

    name: str
    executor: str = "local"
    time_min: float = 60
    data_root: str = ""

    def __post_init__(self) -> None:
        if self.executor not in EXECUTORS:
            raise ValueError(f"site {self.name!r}: executor must be one of {', '.join(EXECUTORS)}")
        if not isinstance(self.time_min, int | float) or not self.time_min > 0:
            raise ValueError(f"site {self.name!r}: time_min must be above 0, in minutes")
        if not isinstance(self.data_root, str):
            raise ValueError(f"site {self.name!r}: data_root must be a folder's path, in quotes")

    def check_gpus(self, gpus: int) -> None:
        """Raise ValueError if this site cannot give a job so many devices (processes)."""
        most = os.cpu_count() or 1
        if not 1 <= gpus <= most:
            raise ValueError(f"gpus={gpus}: site {self.name!r} takes 1 to {most} on this machine")


def user_file() -> Path:
    """The user's own sites: the file that COURSE_SITES names, else one in the config folder."""
    given = os.environ.get("COURSE_SITES")
    return Path(given) if given else user_config_path("make-training-fast") / "sites.toml"


def get(name: str) -> Site:
    """The site of this name.

    Raises:
        ValueError: no such site, or an entry with unknown or wrong settings; the message
            lists the valid ones and names the file.
    """
    entries, own = _read(Path(__file__).with_name("sites.toml")), user_file()
    for key, entry in (_read(own) if own.exists() else {}).items():
        entries[key] = {**entries.get(key, {}), **entry}
    if name not in entries:
        known = ", ".join(entries)
        raise ValueError(f"no site {name!r}: choose {known}, or add it to {own}")
    settings = [field.name for field in fields(Site) if field.name != "name"]
    if unknown := set(entries[name]) - set(settings):
        valid = ", ".join(settings)
        raise ValueError(f"site {name!r} sets {sorted(unknown)}; a site has {valid} (see {own})")
    return Site(name=name, **entries[name])


def _read(path: Path) -> dict[str, dict[str, Any]]:
    try:
        entries = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read as TOML: {error}") from error
    for name, entry in entries.items():
        if not isinstance(entry, dict):
            raise ValueError(f"{path}: {name!r} stands outside a site: put it under [local], say")
    return entries
