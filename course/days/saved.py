"""What a training script saved, against the network that it trained."""

from __future__ import annotations

import math
from collections.abc import Iterator

from course.runs.run import Run


def weights(run: Run) -> Iterator[str]:
    """What is otherwise in weights.pt than in the network that was trained."""
    import torch

    from course.training import models

    if not run.config.save_weights:
        return
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
    # Before TODO 9 every rank writes the file, and the last one's weights are in it.
    writers = [rank["evidence"] for rank in run.ranks if rank.get("weights_by")] or [known]
    sums = [each["weights_sum"] for each in writers]
    if not any(math.isclose(total, each, rel_tol=1e-6, abs_tol=1e-3) for each in sums):
        yield (
            "weights.pt does not hold the weights that training ended with: save the network that "
            "is trained, after the last epoch"
        )
