"""Plan a complete training before it starts, from a recorded machine or a run of your own."""

from __future__ import annotations

import math

import pandas as pd

from course.config import Config
from course.data.images import epoch_px, val_px
from course.jobs.sites import Site
from course.runs.recordings import machines, recorded_runs
from course.runs.run import Run
from course.text import clock
from trainspeed.resources import core_count

IMAGES, VAL_IMAGES = 1_281_167, 50_000  # of ImageNet
GB_PER_MILLION = {"raw": 256 * 256 * 3 / 1e3, "small": 20.0}  # of converted images
IMAGENET_GB = 154.6  # the two official tar files: 147.9 and 6.7; as many as shards
WEIGHTS_GB = 0.1  # of ResNet-50 in fp32
JOB_MIN = 3  # of each job, for its start and its last checkpoint
FORWARD = 1 / 3  # of a step's computations, for an image to validate
STEP_SETTINGS = ("model", "precision", "channels_last", "compile", "algebra")
LOADING = "nvidia-h200"  # where loading was recorded, of images as large as ImageNet's


def plan_training(config: Config, site: Site, gpus: int, basis: Run | str) -> pd.DataFrame:
    """Estimate what a complete training on ImageNet needs.

    Args:
        basis: a run of the same network step, whose speed, memory and power count; or a recorded
            machine, of which the most similar run is chosen.

    Returns:
        Columns: quantity, value (text with units), based on.

    Raises:
        ValueError: the site has fewer GPUs, the batch cannot be split, or the basis does not fit.
    """
    config.require_images("the plan of a training on ImageNet")
    if config.data == "crops":
        raise ValueError(f"data={config.data!r}: the plan is for ImageNet. Choose data='imagenet'")
    site.check_gpus(gpus)
    if config.batch_size % gpus:
        raise ValueError(f"batch_size={config.batch_size}: choose a multiple of gpus={gpus}")
    run = find_basis(config, gpus, basis) if isinstance(basis, str) else basis
    record, source = run.record, f"{run.recorded_on or 'your run'}: {run.name}"
    if not (record and record.images_per_s):
        raise ValueError(f"{run.name} measured no speed: wait for its end, or choose another run")
    if names := _differing(config, run):
        raise ValueError(
            f"{run.name} has another step, with other values of {', '.join(names)}. Choose its rung"
        )
    px, epochs = run.config.image_px, config.epochs
    pixels = [(epoch_px(config, epoch) / px) ** 2 for epoch in range(epochs)]
    trained = config.steps * config.batch_size or IMAGES  # of an epoch
    validated = VAL_IMAGES if config.val_steps < 0 else config.val_steps * config.batch_size
    val_share = (val_px(config) / px) ** 2 * FORWARD * (1 + config.flip_tta)
    rate = _mean_rate(run) / run.gpus
    computed = sum(pixels) * trained + epochs * val_share * min(validated, VAL_IMAGES)
    hours, limit = computed / rate / gpus / 3600, f"{source}: {rate:,.0f} images/s per GPU"
    if run.config.data == "synthetic" != config.data:
        cores = site.cpus_per_gpu if site.executor == "slurm" else core_count() // gpus
        loaded, how = _loading_rate(config.format, max(1, cores - 1))
        loading_hours = epochs * (trained + validated) / loaded / gpus / 3600
        if loading_hours > hours:
            hours, limit = loading_hours, f"loading {loaded:,.0f} images/s per GPU: {how}"
    jobs = max(1, math.ceil(hours * 60 / max(1, site.time_min - JOB_MIN)))
    share = config.batch_size / gpus * max(pixels) / (run.config.batch_size / run.gpus)
    converted = {kind: gb * (IMAGES + VAL_IMAGES) / 1e6 for kind, gb in GB_PER_MILLION.items()}
    stored = (converted | {"shards": IMAGENET_GB}).get(config.format, 0)
    again = "requeues" if site.executor == "slurm" else "times course resume"
    copies = 2 + bool(config.ema)  # weights, momentum, and averages
    peak, watts = record.peak_gib or math.nan, record.watts or math.nan
    rows = [
        ("time", clock(hours * 3600), limit),
        ("per epoch", clock(hours * 3600 / epochs), f"{trained:,} images, and validation"),
        ("jobs", f"{jobs}, so {jobs - 1} {again}", f"site {site.name}: {site.time_min:g} minutes "
         f"each, of which {JOB_MIN} for start and checkpoint (assumed)"),
        ("memory per GPU", f"{max(peak * share, (copies + 1) * WEIGHTS_GB * 1e9 / 2**30):.1f} GiB",
         f"{source}: {peak:.1f} GiB, × images × pixels; at least weights, gradients and state"),
        ("data on disk", f"{IMAGENET_GB + stored:,.0f} GB",
         f"ImageNet's tar files or folders: {IMAGENET_GB}; {config.format}: {stored:,.0f}"),
        ("checkpoints", f"{(2 * copies + 1) * WEIGHTS_GB:.1f} GB", "the last two, and the best"),
        ("energy of the GPUs", f"at most {hours * gpus * watts / 1000:,.1f} kWh",
         f"{source}: {watts:.0f} W per GPU"),
    ]  # fmt: skip
    if {*pixels} != {1}:
        rows.append(("image sizes", "time ∝ pixels, assumed", f"measured at {px} px"))
    if gpus != run.gpus:
        rows.append(("more GPUs", "no loss, assumed", f"measured on {run.gpus} of {gpus}"))
    return pd.DataFrame(rows, columns=["quantity", "value", "based on"]).replace(
        r".*\bnan\b.*", "not measured", regex=True
    )


def find_basis(config: Config, gpus: int, machine: str) -> Run:
    """Return the recorded run whose step, GPUs and batch are most similar.

    Args:
        machine: its recordings with several GPUs, MACHINE-x2 and so on, are searched, too.

    Raises:
        ValueError: there is no such machine, or none of its runs has this step.
    """
    names = [name for name in machines() if name == machine or name.startswith(f"{machine}-x")]
    runs = [run for name in names for run in recorded_runs(name, "throughput", "scaling")]
    runs = [run for run in runs if run.config.data == "synthetic" and not _differing(config, run)]
    if not runs:
        raise ValueError(
            f"no run of {machine!r} has the step of rung {config.rung!r}: choose another machine "
            f"({', '.join(name for name in machines() if '-x' not in name)}), or a run of yours"
        )

    def distance(run: Run) -> tuple[float, float]:
        share, other = config.batch_size / gpus, run.config.batch_size / run.gpus
        return abs(math.log(run.gpus / gpus)), abs(math.log(share / other))

    return min(runs, key=distance)


def _differing(config: Config, run: Run) -> list[str]:
    """Return the settings of the network step in which a run differs from a config."""
    other = run.requested_config
    names = [name for name in STEP_SETTINGS if getattr(config, name) != getattr(other, name)]
    is_half = config.precision == "half" and other.is_half
    return [name for name in names if not (name == "precision" and is_half)]


def _mean_rate(run: Run) -> float:
    """Return images/s over all steps after warm-up: waiting counts, unlike in the median."""
    steps = run.steps
    if steps.empty:  # of some recorded runs, only the record was kept
        return run.record.images_per_s
    times = steps.loc[steps["step"] >= run.config.warmup_steps, "step_s"]
    return run.config.batch_size / times.mean()


def _loading_rate(format_: str, workers: int) -> tuple[float, str]:
    """Return the images/s per GPU that were loaded in a format, and how this is known."""
    runs = [run for run in recorded_runs(LOADING, "formats") if run.config.format == format_]
    runs = [run for run in runs if run.config.workers]
    if format_ == "gpu_decode":
        return max(map(_mean_rate, runs)), f"no more was measured on {LOADING}"
    rate = max(_mean_rate(run) / run.config.workers for run in runs)
    return (
        rate * workers,
        f"{workers} worker{'s' * (workers > 1)} with {rate:,.0f}, as on {LOADING}",
    )
