"""What the lab of three networks shows of a GPU, measured there.

    python -m benchmarks.networks OUT.json [SECONDS]
    python -m benchmarks.networks OUT.json together

The first takes about five minutes on an H100, and begins nothing after SECONDS (300); it goes into
course/recorded/MACHINE/index.json as "networks". The second, on a machine with several GPUs, takes
a minute, and goes into that machine's index as "networks_together". OUT.json is written anew after
each row.
"""

from __future__ import annotations

import json
import sys
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import torch

from course.topics.networks import measured
from course.topics.networks.bench import Setting
from course.topics.sharding.ranks import on_ranks
from course.training.recorder import Recorder

LIMIT_S = 300.0


def main(out: str, how: str = "") -> None:
    """Measure the table of one GPU, or with "together" how networks scale over those there are."""
    place = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    known = {
        "machine": Recorder(None).describe(place)["machine"],
        "date": date.today().isoformat(),
        "torch": torch.__version__,
    }
    if how == "together":
        keep(Path(out), "networks_together", known, together(max(2, torch.cuda.device_count())))
    else:
        save = partial(keep, Path(out), "networks", known)
        measured.measure_all(save, float(how or LIMIT_S))


def keep(out: Path, part: str, known: dict[str, Any], found: dict[str, Any]) -> None:
    """Write what there is so far."""
    out.write_text(json.dumps({part: known | found}, indent=1) + "\n")


def together(
    gpus: int,
    batches: tuple = (*measured.BATCHES, measured.LARGE),
    own: dict[str, Any] = measured.TOGETHER,
) -> dict[str, Any]:
    """Each network on one GPU, and on all of them by data parallelism."""
    nccl = torch.cuda.is_available()
    device = "" if nccl else "cpu"
    rows = [measured.attempted(Setting(name, batch=b, **own), device) for name, b in batches]
    print(*map(measured.told, rows), sep="\n", flush=True)
    backend = "nccl" if nccl else "gloo"
    rows += on_ranks(measured.several, gpus, list(batches), own, device, backend=backend)[0]
    print(*map(measured.told, rows[len(batches) :]), sep="\n", flush=True)
    told = "python -m benchmarks.networks OUT.json together: 10 steps of warm-up, 30 timed ones"
    errors = [row for row in rows if "error" in row]
    return {"command": told, "rows": [row for row in rows if "error" not in row], "errors": errors}


if __name__ == "__main__":
    main(*sys.argv[1:])
