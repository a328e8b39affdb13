"""What a training script saved, against the network that it trained."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from course.runs.run import Run


def weights(run: Run) -> Iterator[str]:
    """What is otherwise in weights.pt than in the network that was trained.

    Of a network in shards TODO 26 is about the file, and its check looks at it by `held`.
    """
    if run.config.save_weights and not run.config.shard:
        sums = [each.get("weights_sum", math.nan) for each in _writers(run)]
        yield from held(run, sums)


def _writers(run: Run) -> list[dict[str, Any]]:
    # Before TODO 9 every rank writes the file, and the last one's weights are in it.
    found = [rank["evidence"] for rank in run.ranks if rank.get("weights_by")]
    return found or [run.record.evidence]


def held(run: Run, sums: list[float]) -> Iterator[str]:
    """What weights.pt has otherwise than the network, whose weights add up to one of `sums`."""
    import torch

    from course.training import models

    path, known, cfg = run.folder / "weights.pt", run.record.evidence, run.config
    if not (path.exists() and known.get("classes")):
        return
    found = torch.load(path, weights_only=True, map_location="cpu")
    with torch.device("meta"):
        wanted = models.create(cfg.model, known["classes"] or 1, cfg.image_px)
    if strangers := sorted({*found} ^ {*wanted.state_dict()}):
        yield (
            f"weights.pt and the network differ in the names of {len(strangers)} tensors, "
            f"{strangers[0]!r} for one: save the network itself, not what is wrapped around it"
        )
        return
    types = {str(found[name].dtype).removeprefix("torch.") for name, _ in wanted.named_parameters()}
    if types != {"float32"}:
        yield f"weights.pt holds {', '.join(sorted(types))} weights, and float32 was trained"
        return
    total = sum(float(found[name].double().sum()) for name, _ in wanted.named_parameters())
    if not any(math.isclose(total, each, rel_tol=1e-6, abs_tol=1e-3) for each in sums):
        yield (
            "weights.pt does not hold the weights that training ended with: save the network that "
            "is trained, after the last epoch"
        )
