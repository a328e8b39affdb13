"""A GPT on meshes: the runs of the notebook, those that machines record, and what they show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from course import Config, Run, rung
from course.lab import Recording

if TYPE_CHECKING:
    import pandas as pd

# On four processes of a CPU. The rate is constant, so that a run can be continued at will.
SMALL: dict[str, Any] = {
    "device": "cpu",
    "context": 16,
    "layers": 2,
    "heads": 4,
    "width": 32,
    "batch_size": 8,
    "steps": 8,
    "warmup_steps": 2,
    "val_steps": 1,
    "lr": 0.01,
    "lr_warmup": 0,
    "schedule": "",
    "collective_timeout_s": 60,
}
# On GPUs, without the compiler, which shards exclude. Few small updates hardly amplify rounding.
FULL_SIZE = {"attention": "sdpa", "fused": True, "val_steps": 0, "lr_warmup": 0, "schedule": ""}
FULL_SIZE |= {"steps": 4, "warmup_steps": 1, "lr": 2e-4}
RECORDED = {"steps": 32, "warmup_steps": 8, "lr": 0.002, "precision": "half"}
# 1.6 billion weights: 25 GB with their gradients and AdamW's state.
XL = {"layers": 48, "heads": 20, "width": 1600}
SAVING: dict[str, dict[str, Any]] = {
    "at-once": {},
    "by-a-thread": {"async_save": True},
    "by-a-process": {"async_save": True, "async_process": True},
}


def mesh_config(data: int = 1, tensor: int = 1, *, quick: bool = True, **settings: Any) -> Config:
    """Return the config of a GPT on data × tensor ranks; one rank has no mesh.

    Args:
        quick: small enough for a CPU; otherwise GPT-2's smallest network, for GPUs.
        settings: further settings.
    """
    size = SMALL if quick else FULL_SIZE
    shard = {"shard": "zero3", "tensor": tensor} if data * tensor > 1 else {}
    return rung("gpt", **size | {"rung": "gpt" + "-mesh" * bool(shard)} | shard | settings)


def stored_mib(runs: Mapping[str, Run]) -> pd.DataFrame:
    """Return the MiB that rank 0 of each run stores: weights, gradients and optimizer."""
    import pandas as pd  # not at the start: every command that lists the labs would wait for it

    rows = {name: vars(run.evidence().spread.bytes) for name, run in runs.items()}
    return pd.DataFrame.from_dict(rows, orient="index") / 2**20


def _recorded_configs(gpus: int) -> Iterator[tuple[Config, int]]:
    """Yield plans for one node: DDP, FSDP2, tensor parallelism and their product, then saving."""
    for name, size in (("gpt2", {}), ("xl", XL)):
        for share in (16, 1):  # sequences per GPU
            batch = RECORDED | {"batch_size": share * gpus} | size
            label = f"{name}-{share}"
            for tensor in (part for part in (1, 2, 4) if gpus % part == 0):
                named = batch | {"rung": f"{label}-{gpus // tensor}x{tensor}"}
                yield mesh_config(gpus // tensor, tensor, quick=False, **named), gpus
            yield mesh_config(quick=False, **batch, rung=f"{label}-ddp"), gpus
    length = RECORDED | {"batch_size": 4 * gpus, "steps": 24, "save_every": 8, "epochs": 1}
    for method, settings in SAVING.items():  # 19 GB, three times, half a minute or more each
        settings = settings | XL | length | {"rung": f"xl-saves-{method}"}
        yield mesh_config(gpus // 2, 2, quick=False, **settings), gpus


RECORDINGS = (Recording("mesh", several=_recorded_configs),)
