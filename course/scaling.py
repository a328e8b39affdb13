"""How training scales over GPUs: as measured, as a small model continues it, and as published.

The model knows one thing, what DDP sends (`course.ring`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from course.feeding import trials
from course.ring import Bucket, Link, all_reduce_s, buckets, exposed_s

if TYPE_CHECKING:
    import pandas as pd

    from course.runs import Run

FREE = ("rung", "data_root", "batch_size", "bucket_mb", "collective_timeout_s")  # may differ
ALPHAS, BETAS = (1e-7, 1e-2), (1e8, 1e13)  # seconds, bytes/s: between these a fit looks
GRID = 61  # values of each that are tried at once
AS_GOOD = 1.5  # links whose squared misses are at most so many times the best's fit as well


@dataclass(frozen=True)
class Fit:
    """The link that explains measured steps best, those that do so nearly as well, the misses."""

    link: Link
    as_good: tuple[Link, ...]
    table: pd.DataFrame  # one row a run: gpus, images_each, bucket_mb, measured_s, model_s


def scaling(runs: Iterable[Run]) -> pd.DataFrame:
    """Efficiency of runs on several GPUs, each against one GPU with the same images per GPU.

    Columns: gpus, images_each (per GPU and step), bucket_mb, images_per_s; efficiency, with the
    95 % interval of `ratio` (NaN where no run on one GPU fits); watts of all GPUs together (NaN
    where none were measured), joules_per_image; step_s, backward_s, machine, setup, run.

    A rank whose watts were not kept counts as much as rank 0. Where files are loaded, images_per_s
    is that of all steps together, and without an interval: batches come in bursts, which a median
    does not see.
    """
    import pandas as pd

    from course.reports import ratio

    known = list(runs)
    rows = []
    for run in known:
        record, gpus, base = run.record, run.record.gpus, _single(run, known)
        speed, watts = _speed(run), _watts(run)
        value = low = high = math.nan
        if base and run.config.data == "synthetic":
            found = ratio(run, base)
            value, low, high = (share or math.nan for share in (found.value, found.low, found.high))
        elif base:
            value = speed / _speed(base)
        rows.append({
            "gpus": gpus, "images_each": run.config.batch_size // gpus,
            "bucket_mb": run.config.bucket_mb, "images_per_s": speed,
            "efficiency": value / gpus, "efficiency_low": low / gpus,
            "efficiency_high": high / gpus, "watts": watts,
            "joules_per_image": watts / speed, "step_s": record.step_s,
            "backward_s": record.backward_s, "machine": record.machine,
            "setup": run.config.setup, "run": run.name,
        })  # fmt: skip
    return pd.DataFrame(rows).sort_values(["images_each", "gpus"], ignore_index=True)


def _speed(run: Run) -> float:
    if run.config.data == "synthetic":
        return run.record.images_per_s
    return float(trials([run])["images_per_s"].iloc[0])


def _single(run: Run, known: Sequence[Run]) -> Run | None:
    """The run on one GPU that has the same config but for the size of the whole batch."""
    for other in known:
        if other.record.gpus == 1 and _computed(other) == _computed(run):
            return other
    return None


def _computed(run: Run) -> dict[str, Any]:
    values = {key: value for key, value in asdict(run.config).items() if key not in FREE}
    each = run.config.batch_size / run.record.gpus
    machine = run.record.machine.partition(" (recorded")[0]  # on whichever day
    return values | {"images_each": each, "machine": machine}


def _watts(run: Run) -> float:
    own = [rank.get("watts") for rank in run.ranks]
    if len(own) == run.record.gpus and None not in own:
        return sum(own)
    return (run.record.watts or math.nan) * run.record.gpus


def fit(runs: Iterable[Run], classes: int = 1000) -> Fit:
    """The link's α and β by least squares of the steps' relative misses, over the runs on several.

    Runs that hide all of their communication tell little about it: add some that cannot, with
    one huge bucket, which waits for the end of backward, and with many small ones, which cost
    α each. What work DDP itself causes ends up in α and β too.

    Args:
        classes: outputs of the model.

    Raises:
        ValueError: no run on several GPUs that has one on a single GPU to compare with.
    """
    import pandas as pd

    from course import models

    known = list(runs)
    pairs = [(run, _single(run, known)) for run in known if run.record.gpus > 1]
    pairs = [(run, base) for run, base in pairs if base]
    if not pairs:
        raise ValueError("nothing to fit: runs on several GPUs are needed, and for each one on a "
                         "single GPU with the same images per GPU")  # fmt: skip
    cases = []
    for run, base in pairs:
        config, model = run.config, models.create(run.config.model, classes)
        sent = buckets(model, config.image_px, config.bucket_mb)
        cases.append((sent, run.record.gpus, base.record, run.record.step_s))
    link, as_good = _best(cases)
    rows = [{"gpus": run.record.gpus, "images_each": run.config.batch_size // run.record.gpus,
             "bucket_mb": run.config.bucket_mb, "one_gpu_s": base.record.step_s,
             "measured_s": run.record.step_s, "model_s": float(_step_s(case, link))}
            for (run, base), case in zip(pairs, cases)]  # fmt: skip
    return Fit(link, tuple(as_good), pd.DataFrame(rows))


Case = tuple[Sequence[Bucket], int, Any, float]  # buckets, ranks, record on one GPU, seconds


def _step_s(case: Case, link: Link) -> Any:
    sent, ranks, base, _ = case
    return base.step_s + exposed_s(sent, ranks, link, base.backward_s)


def _best(cases: Sequence[Case]) -> tuple[Link, list[Link]]:
    """Search a grid of α and β, evenly spaced in their logarithms; then a finer one around."""
    ends, as_good = np.log10([ALPHAS, BETAS]), []
    for _ in range(4):
        axes = [np.logspace(low, high, GRID) for low, high in ends]
        alphas, betas = np.meshgrid(*axes, indexing="ij")
        tried = Link(alphas, betas)
        misses = sum((_step_s(case, tried) / case[3] - 1) ** 2 for case in cases)
        at = np.unravel_index(misses.argmin(), misses.shape)
        if not as_good:
            close = misses <= max(misses[at] * AS_GOOD, len(cases) * 0.002**2)
            as_good = [Link(a, b) for a, b in zip(alphas[close], betas[close])]
        best = Link(float(alphas[at]), float(betas[at]))
        reach = (ends[:, 1] - ends[:, 0]) / 12
        centre = np.log10([best.alpha_s, best.bytes_per_s])
        ends = np.stack([centre - reach, centre + reach], axis=1)
    return best, as_good


def predicted(
    base: Run, link: Link, gpus: Sequence[int], *, bucket_mb: float = 25.0, rows: int = 1,
    classes: int = 1000,
) -> pd.DataFrame:  # fmt: skip
    """What the model says for more GPUs, each with the images that `base` has on one.

    Columns: gpus, sent_s (all buckets, hidden or not), exposed_s, step_s, efficiency, images_per_s.

    Args:
        rows: the all-reduce's grid, as of `all_reduce_s`; counts that do not fill it are left out.
    """
    import pandas as pd

    from course import models

    config, record = base.config, base.record
    sent = buckets(models.create(config.model, classes), config.image_px, bucket_mb)
    found = []
    for count in gpus:
        if count % rows or count < rows:
            continue
        longer = float(exposed_s(sent, count, link, record.backward_s, rows)) if count > 1 else 0.0
        step_s = record.step_s + longer
        taken = sum(all_reduce_s(each.size, count, link, rows) for each in sent)
        found.append({
            "gpus": count, "sent_s": taken, "exposed_s": longer, "step_s": step_s,
            "efficiency": record.step_s / step_s,
            "images_per_s": count * config.batch_size / step_s,
        })  # fmt: skip
    return pd.DataFrame(found)


def published() -> pd.DataFrame:
    """Scaling efficiencies of ResNet-50 on ImageNet that were published, each with its source.

    Columns: who, date, gpus, device, network, efficiency, against (so many GPUs; empty: not told),
    source.
    """
    import pandas as pd

    return pd.read_csv(Path(__file__).with_name("scaling_published.csv"))


def recorded_runs(machine: str, rung: str = "channels_last") -> list[Run]:
    """The runs of one rung that tell how a machine scales: those that were not made for a trace.

    Empty, with a line that says so, where none on several GPUs was recorded yet.
    """
    from course import recordings

    known = recordings.runs(machine) if machine in recordings.machines() else []
    found = [run for run in known if run.config.rung == rung and run.record.status == "ok"
             and not run.record.trace]  # fmt: skip
    if not any(run.record.gpus > 1 for run in found):
        print(f"{machine}: {rung} on several GPUs is not recorded yet.")
        return []
    return found
