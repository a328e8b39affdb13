"""Describe a run's process group and its data loader."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.utils.data import IterableDataset

from course._compat import timeout_s
from course.config import Config
from course.runs.evidence import NOT_APPLICABLE, Group, Loader, Nccl, NotApplicable

LOG_BYTES = 2**24  # of NCCL's log that are read


def group() -> Group | NotApplicable:
    """Return the process group that this process has joined."""
    if not distributed.is_initialized():
        return NOT_APPLICABLE
    return Group(distributed.get_backend_config(), timeout_s() or NOT_APPLICABLE)


def nccl(config: Config) -> Nccl | NotApplicable:
    """Return NCCL's own report of a run with simulated hosts."""
    if config.hosts == 1:
        return NOT_APPLICABLE
    path = Path(os.environ.get("NCCL_DEBUG_FILE", "") or "missing")
    text = ""
    if path.exists():
        with path.open("rb") as file:  # what NCCL reports when a group begins
            text = file.read(LOG_BYTES).decode(errors="replace")
    host_id = os.environ.get("NCCL_HOSTID", "")
    transports = sorted(set(re.findall(r" via ((?:NET|P2P|SHM)/\w+)", text)))
    # NCCL reports each group; the one of all ranks has the most hosts.
    groups = re.findall(r"nNodes (\d+) localRanks (\d+)", text)
    most = max(((int(hosts), int(ranks)) for hosts, ranks in groups), default=())
    return Nccl(host_id, transports, *most)


def algebra(config: Config) -> dict[str, str] | NotApplicable:
    """Return which code trains, fast_resnet's or torchvision's, and why, with cfg.algebra."""
    library = sys.modules.get("fast_resnet")  # some scripts do not import it
    return library.last_conversion() if config.algebra and library else NOT_APPLICABLE


def loader(batches: Any) -> Loader:
    """Return a DataLoader's settings."""
    names = [f.name for f in fields(Loader) if f.name != "streams"]
    arguments = {name: getattr(batches, name, None) for name in names}
    applicable = {name: value for name, value in arguments.items() if value is not None}
    streams = isinstance(getattr(batches, "dataset", None), IterableDataset)
    return Loader(**applicable, streams=streams)


def numbered(device: torch.device) -> str:
    """Return the device with its number; without a number, it is the current device."""
    if device.type == "cpu" or device.index is not None:
        return str(device)
    return f"{device.type}:{torch.accelerator.current_device_index()}"
