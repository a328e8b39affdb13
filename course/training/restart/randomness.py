"""Where a run's random numbers come from, so that a second run can have the same."""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np
import torch
from torch import distributed
from torch.utils._pytree import tree_map_only

from course.config import Config

# cuBLAS chooses among algorithms by the workspace that it has; of a fixed one, always the same.
WORKSPACE = ("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def begin(cfg: Config) -> None:
    """Seed what a training draws from, and fix the algorithms if the config asks for it.

    To be called before anything is computed on a GPU.
    """
    random.seed(cfg.seed)
    np.random.seed(cfg.seed)
    torch.manual_seed(cfg.seed)
    if cfg.deterministic:
        os.environ.setdefault(*WORKSPACE)
    torch.use_deterministic_algorithms(cfg.deterministic)
    torch.backends.cudnn.benchmark = False  # it times algorithms, and takes what was quick today


def states(device: torch.device) -> list[dict[str, Any]]:
    """How far random numbers have got on each rank: Python's, NumPy's, PyTorch's two.

    All ranks must ask. Plain numbers and tensors, so that a file of them is safe to read.
    """
    kind, keys, *rest = np.random.get_state()
    version, inner, gauss = random.getstate()
    own = {
        "python": [version, np.array(inner), gauss],
        "numpy": [kind, keys.astype(np.int64), *rest],
        "cpu": torch.get_rng_state().numpy(),
        "device": None if device.type == "cpu" else _of(device).get_rng_state().numpy(),
    }
    every: list[Any] = [own]
    if distributed.is_initialized():
        every = [None] * distributed.get_world_size()
        distributed.all_gather_object(every, own)
    return tree_map_only(np.ndarray, torch.from_numpy, every)


def set_states(saved: list[dict[str, Any]], device: torch.device) -> None:
    """Let random numbers go on where this rank's stood when `states` was asked.

    Raises:
        ValueError: they are of another number of ranks.
    """
    joined = distributed.is_initialized()
    ranks, rank = (distributed.get_world_size(), distributed.get_rank()) if joined else (1, 0)
    if len(saved) != ranks:
        raise ValueError(
            f"this checkpoint has random numbers of {len(saved)} ranks, and {ranks} go on: launch "
            f"with gpus={len(saved)}"
        )
    own = saved[rank]
    version, inner, gauss = own["python"]
    random.setstate((version, tuple(inner.tolist()), gauss))
    kind, keys, *rest = own["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(own["cpu"])
    if own["device"] is not None and device.type != "cpu":
        _of(device).set_rng_state(own["device"])


def _of(device: torch.device) -> Any:
    return torch.get_device_module(device)
