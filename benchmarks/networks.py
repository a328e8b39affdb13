"""What the lab of three networks shows of a GPU, measured there.

    python -m benchmarks.networks OUT.json [SECONDS]
    python -m benchmarks.networks OUT.json together

The first leaves out what may not end within SECONDS (550), the least important last; it goes into
course/recorded/MACHINE/index.json as "networks". Nothing else may run on that machine: eager steps
of small batches wait for the host. The second, on a machine with several GPUs, goes into that
machine's index as "networks_together". OUT.json is written anew after each row.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import torch

from course.topics.networks import measured
from course.topics.networks.bench import Setting
from course.training.recorder import Recorder

LIMIT_S = 550.0
TOGETHER = (
    "python -m benchmarks.networks OUT.json together: 10 steps of warm-up, 30 timed ones, one "
    "traced; cuDNN chooses its kernels by trying"
)


def main(out: str, how: str = "") -> None:
    """Measure the table of one GPU, or with "together" how networks scale over those there are."""
    place = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    known = {
        "machine": Recorder(None).describe(place)["machine"],
        "date": date.today().isoformat(),
        "torch": torch.__version__,
    }
    if how == "together":
        save = partial(keep, Path(out), "networks_together", known)
        together(save, max(2, torch.cuda.device_count()))
    else:
        save = partial(keep, Path(out), "networks", known)
        measured.measure_all(save, float(how or LIMIT_S))


def keep(out: Path, part: str, known: dict[str, Any], found: dict[str, Any]) -> None:
    """Write what there is so far."""
    out.write_text(json.dumps({part: known | found}, indent=1) + "\n")


def together(
    save: Callable[[dict[str, Any]], None],
    gpus: int,
    asked: tuple = measured.TOGETHER,
    own: dict[str, Any] = measured.STEPS_TOGETHER,
) -> dict[str, Any]:
    """Each network on one GPU, and on all of them by data parallelism; saved after each row."""
    device = "" if torch.cuda.is_available() else "cpu"
    found: dict[str, Any] = {"command": TOGETHER, "rows": [], "errors": []}
    for count in (1, gpus):
        for name, batch, layout in asked:
            setting = Setting(name, batch=batch, layout=layout, gpus=count, **own)
            row = measured.attempted(setting, device)
            found["errors" if "error" in row else "rows"].append(row)
            save(found)
            print(measured.told(row), flush=True)
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
