"""The solution's own lines, by block: what an answer writes otherwise."""

from typing import NamedTuple


class Answer(NamedTuple):
    """One learner's solution of one TODO; everything else is as in the solution."""

    todo: int
    edits: dict[str, str]  # exact text of the solution -> what the learner has there
    why: str
    config: dict = {}  # fields of Config that the checked run needs for the fault to show
    ranks: int = 1
    said: str = ""  # words that the check must say of it, as a pattern
    both: bool = False  # is the run of the step before of the same script?


# The solution's own lines, by block.
FIND = "    accelerator = torch.accelerator.current_accelerator(check_available=True)"
DEVICE = '    device = accelerator if cfg.device == "auto" and accelerator else torch.device("cpu")'
MODEL = "    model = model.to(device)"
IMAGES = "            images = images.to(device, non_blocking=cfg.non_blocking)"
LABELS = "            labels = labels.to(device, non_blocking=cfg.non_blocking)"

AUTOCAST = (
    "    autocast = torch.autocast("
    "device.type, HALF.get(cfg.precision), enabled=cfg.precision in HALF)"
)

SCALER = '    scaler = torch.amp.GradScaler(device.type, enabled=cfg.precision == "fp16")'
BACKWARD = "            scaler.scale(loss).backward()"
STEP = """\
            scaler.step(optimizer)
            scaler.update()"""

LAST_WEIGHTS = """\
    if cfg.channels_last:
        model = model.to(memory_format=torch.channels_last)"""
LAST_IMAGES = """\
            if cfg.channels_last:
                images = images.to(memory_format=torch.channels_last)"""

PROFILER = """\
    profiler = torch.profiler.profile(
        schedule=profiling.schedule(cfg), on_trace_ready=run.save_trace, record_shapes=True
    )"""
PROFILER_START = "    profiler.start()"
PROFILER_STEP = "            profiler.step()"
PROFILER_STOP = "    profiler.stop()"

LOADING = """\
    loading = {"num_workers": cfg.workers, "persistent_workers": cfg.persistent_workers,
               "prefetch_factor": cfg.prefetch_factor if cfg.workers else None,
               "pin_memory": cfg.pin_memory}  # fmt: skip"""
WORKERS = '"num_workers": cfg.workers, "persistent_workers": cfg.persistent_workers,'
PREFETCH = '"prefetch_factor": cfg.prefetch_factor if cfg.workers else None,'
PIN = '"pin_memory": cfg.pin_memory}'

OWN_DEVICE = "            device = torch.device(device.type, run.local_rank)"
SET_DEVICE = "            torch.accelerator.set_device_index(run.local_rank)"
TAKE_DEVICE = f"""\
        if device.type != "cpu":
{OWN_DEVICE}
{SET_DEVICE}"""
TIMEDELTA = "from datetime import timedelta"
JOIN = "        distributed.init_process_group(timeout=timedelta(seconds=cfg.collective_timeout_s))"

SHARE = "    share = cfg.batch_size // run.world_size"
SAMPLER = "    sampler = DistributedSampler(sets.train, run.world_size, run.rank, seed=cfg.seed)"
DDP = """\
        model = DDP(model, bucket_cap_mb=cfg.bucket_mb, gradient_as_bucket_view=True,
                    find_unused_parameters=cfg.find_unused)  # fmt: skip"""
SET_EPOCH = "        sampler.set_epoch(epoch)"

VAL_SAMPLER = "    val_sampler = range(run.rank, len(sets.val), run.world_size)"
SAVE = """\
    if run.rank == 0:
        run.save_weights(net)"""
REDUCE = "        distributed.all_reduce(totals)"
