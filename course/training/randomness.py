"""The random numbers of a run: seeds and states, so that a second run can draw the same ones."""

from __future__ import annotations

import os
import random
import zlib
from typing import Any

import numpy as np
import torch
from torch import distributed

from course._compat import tree_map_only
from course.config import Config

# cuBLAS chooses algorithms by the size of its workspace; a fixed size gives the same ones.
WORKSPACE = ("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def seed_all(cfg: Config) -> None:
    """Seed all random number generators, and use deterministic algorithms if the config says so.

    Call it before anything is computed on a GPU.
    """
    random.seed(cfg.seed)
    np.random.seed(cfg.seed)
    torch.manual_seed(cfg.seed)
    if cfg.deterministic:
        os.environ.setdefault(*WORKSPACE)
    torch.use_deterministic_algorithms(cfg.deterministic)
    torch.backends.cudnn.benchmark = False  # it would choose by today's speed


def get_states(device: torch.device) -> list[dict[str, Any]]:
    """Return the generators' states of each rank: Python's, NumPy's, PyTorch's two.

    All ranks must call it. It returns numbers and tensors only, which are safe to load.
    """
    kind, keys, *rest = np.random.get_state()
    version, inner, gauss = random.getstate()
    states = {
        "python": [version, np.array(inner), gauss],
        "numpy": [kind, keys.astype(np.int64), *rest],
        "cpu": torch.get_rng_state().numpy(),
        "device": None,
    }
    if device.type != "cpu":
        states["device"] = torch.get_device_module(device).get_rng_state().numpy()
    all_states: list[Any] = [states]
    if distributed.is_initialized():
        all_states = [None] * distributed.get_world_size()
        distributed.all_gather_object(all_states, states)
    return tree_map_only(np.ndarray, torch.from_numpy, all_states)


def set_states(saved: list[dict[str, Any]], device: torch.device) -> None:
    """Restore this rank's states, as `get_states` returned them.

    If they are from a different number of ranks, each rank begins a new sequence instead.
    """
    is_member = distributed.is_initialized()
    ranks, rank = (distributed.get_world_size(), distributed.get_rank()) if is_member else (1, 0)
    if len(saved) != ranks:
        start = zlib.crc32(saved[0]["cpu"].numpy().tobytes())
        for seed in (random.seed, np.random.seed, torch.manual_seed):
            seed((start + rank) % 2**32)
        return
    states = saved[rank]
    version, inner, gauss = states["python"]
    random.setstate((version, tuple(inner.tolist()), gauss))
    kind, keys, *rest = states["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(states["cpu"])
    if states["device"] is not None and device.type != "cpu":
        torch.get_device_module(device).set_rng_state(states["device"])
