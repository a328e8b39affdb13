"""Describe a run's process group and its data loader."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.utils.data import IterableDataset

from course.config import Config

LOG_BYTES = 2**24  # of NCCL's log that are read

LOADER = (
    "num_workers",
    "persistent_workers",
    "prefetch_factor",
    "pin_memory",
    "drop_last",
    "in_order",
)


def group() -> dict[str, Any]:
    """Return the backend and timeout of this process's group; {} if it has joined none."""
    if not distributed.is_initialized():
        return {}
    default = distributed.distributed_c10d._get_default_group()
    description: dict[str, Any] = {"backend": distributed.get_backend_config()}
    for device in default._device_types:  # PyTorch has no public function for this
        options = getattr(default._get_backend(device), "options", None)
        if options is not None:
            description["timeout_s"] = options._timeout.total_seconds()
    return description


def nccl(config: Config) -> dict[str, Any]:
    """Return NCCL's own report of a run with pretended hosts; {} for other runs.

    Keys: host_id, of this rank; hosts and ranks_per_host, as NCCL counts them; transports, such as
    "NET/Socket" between hosts and "P2P/IPC" within one.
    """
    if config.hosts == 1:
        return {}
    report: dict[str, Any] = {"host_id": os.environ.get("NCCL_HOSTID", "")}
    path = Path(os.environ.get("NCCL_DEBUG_FILE", "") or "missing")
    text = ""
    if path.exists():
        with path.open("rb") as file:  # what NCCL reports when a group begins
            text = file.read(LOG_BYTES).decode(errors="replace")
    # NCCL reports each group; the one of all ranks has the most hosts.
    if groups := re.findall(r"nNodes (\d+) localRanks (\d+)", text):
        hosts, ranks = max((int(hosts), int(ranks)) for hosts, ranks in groups)
        report |= {"hosts": hosts, "ranks_per_host": ranks}
    report["transports"] = sorted(set(re.findall(r" via ((?:NET|P2P|SHM)/\w+)", text)))
    return {"nccl": report}


def algebra(config: Config) -> dict[str, Any]:
    """Return which code trains, fast_resnet's or torchvision's, and why; {} without algebra."""
    library = sys.modules.get("fast_resnet")  # some scripts do not import it
    return {"algebra": library.last_conversion()} if config.algebra and library else {}


def loader(batches: Any) -> dict[str, Any]:
    """Return a DataLoader's settings by argument name; None for those that `batches` lacks."""
    arguments = {name: getattr(batches, name, None) for name in LOADER}
    streams = isinstance(getattr(batches, "dataset", None), IterableDataset)
    return arguments | {"streams": streams}


def numbered(device: torch.device) -> str:
    """Return the device with its number; without a number, it is the current device."""
    if device.type == "cpu" or device.index is not None:
        return str(device)
    return f"{device.type}:{torch.accelerator.current_device_index()}"
