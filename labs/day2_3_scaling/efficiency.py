"""How training scales over GPUs: as measured, as a small model continues it, and as published.

The model knows one thing, what DDP sends (`labs.day2_3_scaling.ring`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from labs.day2_1_dataloader.loading import trials
from labs.day2_3_scaling.ring import Bucket, Link, all_reduce_s, buckets, exposed_s

if TYPE_CHECKING:
    import pandas as pd

    from course.runs.run import Run

FREE = ("rung", "data_root", "batch_size", "bucket_mb", "collective_timeout_s")  # may differ
ALPHAS, BETAS = (1e-7, 1e-2), (1e8, 1e13)  # seconds, bytes/s: between these a fit looks
GRID = 61  # values of each that are tried at once
WIDE = 0.3  # decades to each side of the best link, in which the intervals lie
FASTEST = 0.1  # the share of messages that stays below the fitted line


@dataclass(frozen=True)
class Fit:
    """A link, fitted to messages, and what else a step on several GPUs takes.

    Attributes:
        low, high: the ends of the 95 % intervals of its α and β, if the ring's formula holds.
        own_s: what a step is longer by, apart from what is sent after backward: DDP's own work.
        messages: what α and β were fitted to.
        table: a row a run: gpus, images_each, bucket_mb, one_gpu_ms, measured_ms, exposed_ms,
            model_ms.
    """

    link: Link
    low: Link
    high: Link
    own_s: float
    messages: pd.DataFrame
    table: pd.DataFrame


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

    known = list(runs)
    rows = [_scaled(run, _single(run, known)) for run in known]
    return pd.DataFrame(rows).sort_values(["images_each", "gpus"], ignore_index=True)


def _scaled(run: Run, base: Run | None) -> dict[str, Any]:
    """A row of `scaling`: a run against the one on a single GPU."""
    record, gpus, speed, watts = run.record, run.record.gpus, _speed(run), _watts(run)
    value, low, high = _speedup(run, base) if base else (math.nan,) * 3
    return {
        "gpus": gpus,
        "images_each": run.config.batch_size // gpus,
        "bucket_mb": run.config.bucket_mb,
        "images_per_s": speed,
        "efficiency": value / gpus,
        "efficiency_low": low / gpus,
        "efficiency_high": high / gpus,
        "watts": watts,
        "joules_per_image": watts / speed,
        "step_s": record.step_s,
        "backward_s": record.backward_s,
        "machine": record.machine,
        "setup": run.config.setup,
        "run": run.name,
    }


def _speedup(run: Run, base: Run) -> tuple[float, float, float]:
    """How many times as fast a run is, and the 95 % interval's ends; what is unknown is NaN."""
    from course.runs.ratio import ratio

    if run.config.data != "synthetic":
        return _speed(run) / _speed(base), math.nan, math.nan
    found = ratio(run, base)
    return found.value or math.nan, found.low or math.nan, found.high or math.nan


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


def fit(runs: Iterable[Run], messages: pd.DataFrame, classes: int = 1000) -> Fit:
    """α and β from how long messages were under way; DDP's own work from how long steps were.

    A message that waits for a rank that is late takes longer than its link needs, and never
    shorter. So what is fitted is no mean, but the line that a tenth of the messages stay below.

    Args:
        messages: of `communication.messages`: many small ones tell α, large ones tell β.
        classes: outputs of the model.

    Raises:
        ValueError: no messages, or no run on several GPUs that has one on a single GPU to compare
            with.
    """
    import pandas as pd

    known = list(runs)
    pairs = [(run, _single(run, known)) for run in known if run.record.gpus > 1]
    pairs = [(run, base) for run, base in pairs if base]
    if not pairs or messages.empty:
        raise ValueError(
            "nothing to fit: traced runs on several GPUs are needed, others that "
            "were not traced, and for each one on a single GPU with the same images "
            "per GPU"
        )
    link, low, high = _best(messages)
    table = pd.DataFrame([_modelled(run, base, link, classes) for run, base in pairs])
    own_ms = float((table["measured_ms"] - table["one_gpu_ms"] - table["exposed_ms"]).median())
    table["model_ms"] = table["one_gpu_ms"] + own_ms + table["exposed_ms"]
    return Fit(link, low, high, own_ms / 1e3, messages, table)


def _modelled(run: Run, base: Run, link: Link, classes: int) -> dict[str, Any]:
    """A row of `Fit.table`, all but model_ms."""
    config, gpus = run.config, run.record.gpus
    sent = sent_by(config.model, classes, config.image_px, config.bucket_mb)
    return {
        "gpus": gpus,
        "images_each": config.batch_size // gpus,
        "bucket_mb": config.bucket_mb,
        "one_gpu_ms": 1e3 * base.record.step_s,
        "measured_ms": 1e3 * run.record.step_s,
        "exposed_ms": 1e3 * float(exposed_s(sent, gpus, link, base.record.backward_s)),
    }


@lru_cache(maxsize=32)
def sent_by(model: str, classes: int, image_px: int, bucket_mb: float) -> list[Bucket]:
    """The buckets of a model of `course.training.models`, whose weights are not made."""
    import torch

    from course.training import models

    with torch.device("meta"):
        return buckets(models.create(model, classes), image_px, bucket_mb)


def _best(messages: pd.DataFrame) -> tuple[Link, Link, Link]:
    """Search a grid of α and β, evenly spaced in their logarithms, then finer ones around.

    Returns:
        The best link; and the ends of the 95 % intervals of α and β, from fits to messages that
        were drawn anew from these.
    """
    ends = np.log10([ALPHAS, BETAS])
    centre, reach = ends.mean(axis=1), np.ptp(ends, axis=1) / 2
    for zoom, wide in enumerate((reach, [WIDE] * 2, [WIDE / 10] * 2)):
        alphas, betas = (np.logspace(at - to, at + to, GRID) for at, to in zip(centre, wide))
        misses = _misses(messages, Link(*np.meshgrid(alphas, betas, indexing="ij")))
        at = np.unravel_index(misses.sum(axis=0).argmin(), (GRID, GRID))
        if zoom == 1:
            dice = np.random.default_rng(0)
            drawn = dice.multinomial(len(messages), [1 / len(messages)] * len(messages), 500)
            each = np.unravel_index((drawn @ misses).argmin(axis=1), (GRID, GRID))
            ends = [np.percentile(axis[of], [2.5, 97.5]) for axis, of in zip((alphas, betas), each)]
        centre = np.log10([alphas[at[0]], betas[at[1]]])
    best = 10**centre
    low, high = (
        Link(*(float(value) for value in pick(best, each)))
        for pick, each in zip((np.minimum, np.maximum), zip(*ends))
    )
    return Link(float(best[0]), float(best[1])), low, high


def _misses(messages: pd.DataFrame, tried: Link) -> np.ndarray:
    """How far each message is off each link; what is slower counts little, what is faster much."""
    sent = zip(messages["bytes"], messages["ranks"], messages["duration_s"])
    over = np.array(
        [np.log(took / all_reduce_s(size, ranks, tried)).ravel() for size, ranks, took in sent]
    )
    return np.where(over < 0, (FASTEST - 1) * over, FASTEST * over)


def predicted(
    base: Run,
    link: Link,
    gpus: Sequence[int],
    *,
    own_s: float = 0.0,
    rows: int = 1,
    bucket_mb: float = 25.0,
    classes: int = 1000,
) -> pd.DataFrame:
    """What the model says for more GPUs, each with the images that `base` has on one.

    Columns: gpus, sent_ms (all buckets, hidden or not), exposed_ms, step_ms, efficiency,
    images_per_s.

    Args:
        own_s: what a step on several GPUs is longer by besides, as `fit` finds it.
        rows: the all-reduce's grid, as of `all_reduce_s`; counts that do not fill it are left out.
    """
    import pandas as pd

    config, record = base.config, base.record
    sent = sent_by(config.model, classes, config.image_px, bucket_mb)

    def row(count: int) -> dict[str, float]:
        shown = float(exposed_s(sent, count, link, record.backward_s, rows)) if count > 1 else 0.0
        step_s = record.step_s + shown + own_s * (count > 1)
        return {
            "gpus": count,
            "sent_ms": 1e3 * sum(all_reduce_s(each.size, count, link, rows) for each in sent),
            "exposed_ms": 1e3 * shown,
            "step_ms": 1e3 * step_s,
            "efficiency": record.step_s / step_s,
            "images_per_s": count * config.batch_size / step_s,
        }

    return pd.DataFrame([row(count) for count in gpus if count >= rows and not count % rows])


def published() -> pd.DataFrame:
    """Scaling efficiencies of ResNet-50 on ImageNet that were published, each with its source.

    Columns: who, date, gpus, device, network, efficiency, against_gpus (empty: not told),
    source.
    """
    import pandas as pd

    return pd.read_csv(Path(__file__).with_name("scaling_published.csv"))


def recorded_runs(machine: str, rung: str = "channels_last") -> list[Run]:
    """The runs of one rung that tell how a machine scales, on one GPU and on several.

    Empty, with a line that says so, where none on several GPUs was recorded yet.
    """
    from course.runs import recordings

    known = machine in recordings.machines()
    runs = recordings.recorded_runs(machine, "scaling") if known else []
    found = [run for run in runs if run.config.rung == rung and run.record.status == "ok"]
    if not any(run.record.gpus > 1 for run in found):
        print(f"{machine}: {rung} on several GPUs is not recorded yet.")
        return []
    return found
