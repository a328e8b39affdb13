"""Model FLOPs utilisation (MFU): how much of a GPU's peak a training uses.

Chowdhery et al. 2022 (PaLM, arXiv:2204.02311, appendix B).
"""

from __future__ import annotations

from functools import lru_cache

from course.runs.run import Run
from trainspeed.gpus import gpu_rates


def mfu(run: Run) -> float | None:
    """Return the FLOP that the network needs per second, over the GPU's peak; None if unknown.

    Only what the network needs counts: neither recomputation nor padding. The peak is that of
    dense products in bf16 in the GPU's data sheet, in every precision, so that rungs compare.
    """
    record = run.record
    if not record or not record.images_per_s or record.device == "cpu":
        return None
    config, peak = run.config, gpu_rates(record.machine).get("bf16")
    if not peak or config.start_px:  # of images that grow, no number is known
        return None
    if config.tokens:
        flop = config.tokens * config.flop_per_token
    else:
        flop = _flop_per_image(config.model, config.image_px)
    return flop * record.images_per_s / record.gpus / peak


@lru_cache
def _flop_per_image(model: str, image_px: int) -> float:
    """Return the FLOP of training with an image: backward needs twice those of forward."""
    import torch

    from course.training import models

    with torch.device("meta"):
        network = models.create(model, 1000, image_px)
    return 3e9 * models.forward_gflop(network, image_px)
