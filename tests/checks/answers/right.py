"""Right, but unusual."""

from answers.lines import (
    AUTOCAST,
    BACKWARD,
    DDP,
    DEVICE,
    FIND,
    IMAGES,
    JOIN,
    LABELS,
    LAST_IMAGES,
    LAST_WEIGHTS,
    LOADING,
    MODEL,
    OWN_DEVICE,
    PROFILER,
    PROFILER_START,
    PROFILER_STEP,
    PROFILER_STOP,
    REDUCE,
    SAMPLER,
    SAVE,
    SCALER,
    SET_EPOCH,
    SHARE,
    STEP,
    VAL_SAMPLER,
    Answer,
)

RIGHT = {
    "asks first whether there is an accelerator": Answer(
        todo=1,
        edits={
            f"{FIND}\n{DEVICE}": """\
    device = torch.device("cpu")
    if cfg.device == "auto" and torch.accelerator.is_available():
        device = torch.accelerator.current_accelerator()"""
        },
        why="is_available is what check_available asks; without it or with device=cpu the CPU.",
    ),
    "moves the batch in one line": Answer(
        todo=1,
        edits={
            MODEL: "    model.to(device)",
            f"{IMAGES}\n{LABELS}": """\
            images, labels = (
                each.to(device, non_blocking=cfg.non_blocking) for each in (images, labels)
            )""",
        },
        why="Module.to works in place, so its answer need not be kept; the generator is unpacked "
        "into the two moved tensors.",
    ),
    "copies into tensors of its own on the device": Answer(
        todo=1,
        edits={
            IMAGES: "            there = torch.empty_like(images, device=device)\n"
            "            images = there.copy_(images, non_blocking=cfg.non_blocking)",
            LABELS: "            there = torch.empty_like(labels, device=device)\n"
            "            labels = there.copy_(labels, non_blocking=cfg.non_blocking)",
        },
        why="What to() does, by hand; values, types and (for plain batches) layout are kept. On a "
        "CPU, or for synthetic batches, it costs a copy that to() spares, and no more.",
    ),
    "the course's helper for autocast": Answer(
        todo=2,
        edits={AUTOCAST: "    autocast = precision.autocast(device, cfg.precision)"},
        config={"precision": "bf16"},
        why="course.training.precision has these calls; for fp32 it is a nullcontext.",
    ),
    "autocast or nothing": Answer(
        todo=2,
        edits={
            AUTOCAST: """\
    autocast = nullcontext()
    if cfg.precision in HALF:
        autocast = torch.autocast(device.type, HALF[cfg.precision], cache_enabled=False)"""
        },
        config={"precision": "bf16"},
        why="No context at all for fp32. The cache of 16-bit weights saves a cast only where a "
        "weight is used twice in a forward pass, which a ResNet does not do.",
    ),
    "autocast inside the network, scores back in fp32": Answer(
        todo=2,
        edits={
            AUTOCAST: """\
    autocast = nullcontext()
    if cfg.precision in HALF:
        in_half = torch.autocast(device.type, HALF[cfg.precision])(net.forward)
        net.forward = lambda images: in_half(images).float()"""
        },
        config={"precision": "bf16"},
        why="The forward pass is under autocast in training and validation, and the loss is "
        "computed in fp32 from the scores, as autocast would do it. Weights keep their names.",
    ),
    "unscales explicitly": Answer(
        todo=3,
        edits={
            BACKWARD: "            torch.autograd.backward(scaler.scale(loss))",
            STEP: "            scaler.unscale_(optimizer)\n" + STEP,
        },
        config={"precision": "fp16"},
        why="scaler.step knows that gradients are unscaled already; a disabled scaler's unscale_ "
        "does nothing. loss.backward() is torch.autograd.backward(loss).",
    ),
    "scales by hand": Answer(
        todo=3,
        edits={
            SCALER: """\
    scale, since = 2.0**16 if cfg.precision == "fp16" else 1.0, 0""",
            BACKWARD: """\
            (loss * scale).backward()""",
            STEP: """\
            finite = True
            if cfg.precision == "fp16":
                gradients = [weight.grad for weight in net.parameters()]
                torch._foreach_div_(gradients, scale)
                finite = all(each.isfinite().all().item() for each in gradients)
                since = since + 1 if finite else 0
                if not finite:
                    scale /= 2
                elif since == 2000:
                    scale, since = scale * 2, 0
            if finite:
                optimizer.step()""",
        },
        config={"precision": "fp16"},
        why="GradScaler's own rules, written out: scale, unscale, skip and halve on overflow, "
        "double after 2,000 good steps. A factor of 1.0 changes no bit where it is not fp16; "
        "under DDP all ranks see the same averaged gradients, and so decide alike.",
    ),
    "layout and device in one copy": Answer(
        todo=4,
        edits={
            IMAGES: """\
            layout = torch.channels_last if cfg.channels_last else torch.preserve_format
            images = images.to(device, non_blocking=cfg.non_blocking, memory_format=layout)""",
            LAST_IMAGES: "",
        },
        config={"channels_last": True},
        why="to() takes both. normalised, in between, leaves batches of floats as they are, and "
        "works element by element on bytes, which keeps their layout.",
    ),
    "the course's helper for layouts": Answer(
        todo=4,
        edits={
            LAST_WEIGHTS: "    model = precision.channels_last(model, cfg.channels_last)",
            LAST_IMAGES: "            images = precision.channels_last(images, cfg.channels_last)",
        },
        config={"channels_last": True},
        why="The same calls; with on=False the helper gives back what it got.",
    ),
    "permutes by hand": Answer(
        todo=4,
        edits={
            LAST_WEIGHTS: """\
    if cfg.channels_last:
        for weight in model.parameters():
            if weight.dim() == 4:
                weight.data = weight.data.contiguous(memory_format=torch.channels_last)""",
            LAST_IMAGES: """\
            if cfg.channels_last:
                images = images.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)""",
        },
        config={"channels_last": True},
        why="Pixels are laid out as NHWC and looked at as NCHW again: channels last. All weights "
        "with four indices are converted, before DDP and the optimizer see them. (Weights of "
        "1 x 1 kernels are both layouts at once, and are left as they are.)",
    ),
    "a profiler only where there is something to trace": Answer(
        todo=5,
        edits={
            PROFILER: """\
    profiler = None
    if cfg.profile_steps:
        profiler = torch.profiler.profile(
            schedule=profiling.schedule(cfg), on_trace_ready=run.save_trace, record_shapes=True
        )""",
            PROFILER_START: "    if profiler:\n        profiler.start()",
            PROFILER_STEP: "            if profiler:\n                profiler.step()",
            PROFILER_STOP: "    if profiler:\n        profiler.stop()",
        },
        config={"profile_steps": 1},
        why="With profile_steps=0 the solution's profiler records nothing; here there is none.",
    ),
    "enters and leaves the profiler, own schedule": Answer(
        todo=5,
        edits={
            PROFILER: """\
    def action(step):
        kind, last = torch.profiler.ProfilerAction, 1 + cfg.profile_steps
        if step == 0 or step > last or not cfg.profile_steps:
            return kind.NONE
        if step == 1:
            return kind.WARMUP
        return kind.RECORD_AND_SAVE if step == last else kind.RECORD

    profiler = torch.profiler.profile(
        schedule=action, on_trace_ready=run.save_trace, record_shapes=True
    )""",
            PROFILER_START: "    profiler.__enter__()",
            PROFILER_STOP: "    profiler.__exit__(None, None, None)",
        },
        config={"profile_steps": 2},
        why="Waits in step 0, warms up in step 1, records cfg.profile_steps steps from step 2 on, "
        "once: the config's schedule, written out. Entering is start, leaving is stop.",
    ),
    "saves the trace when training is over": Answer(
        todo=5,
        edits={
            PROFILER: """\
    profiler = torch.profiler.profile(schedule=profiling.schedule(cfg), record_shapes=True)""",
            PROFILER_STOP: PROFILER_STOP
            + """
    if cfg.profile_steps:
        run.save_trace(profiler)""",
        },
        config={"profile_steps": 1},
        why="The profiler keeps its last recording until another one begins, and with repeat=1 "
        "none does: the same trace, written after the last step and not in the middle.",
    ),
    "leaves workers' arguments out where there are none": Answer(
        todo=6,
        edits={
            LOADING: """\
    loading = dict(num_workers=cfg.workers, pin_memory=cfg.pin_memory)
    if cfg.workers:
        loading |= dict(
            prefetch_factor=cfg.prefetch_factor, persistent_workers=cfg.persistent_workers
        )"""
        },
        config={"workers": 2, "persistent_workers": True, "prefetch_factor": 3},
        why="Without workers, PyTorch's defaults (None, False) are the ones that are due; a config "
        "with persistent_workers and no workers does not exist.",
    ),
    "says to the group what it could find out": Answer(
        todo=7,
        edits={
            OWN_DEVICE: '            device = torch.device(f"{device.type}:{run.local_rank}")',
            JOIN: """\
        distributed.init_process_group(
            distributed.get_default_backend_for_device(device), init_method="env://",
            rank=run.rank, world_size=run.world_size,
            timeout=timedelta(seconds=cfg.collective_timeout_s),
        )""",
        },
        ranks=2,
        why="The backend that belongs to the device, and rank, size and address as the environment "
        "has them, which are the defaults. All collectives of the script are on that device.",
    ),
    "binds the group to its device": Answer(
        todo=7,
        edits={
            JOIN: """\
        own = None if device.type == "cpu" else device
        distributed.init_process_group(
            timeout=timedelta(seconds=cfg.collective_timeout_s), device_id=own
        )"""
        },
        ranks=2,
        why="device_id connects NCCL at once to the device that this rank has taken; None, on a "
        "CPU, is the default.",
    ),
    "a sampler only where there are several ranks": Answer(
        todo=8,
        edits={
            f"{SHARE}\n{SAMPLER}": """\
    share, sampler = cfg.batch_size, None
    if run.world_size > 1:
        share //= run.world_size
        sampler = DistributedSampler(sets.train, run.world_size, run.rank, seed=cfg.seed)""",
            SET_EPOCH: "        if sampler is not None:\n            sampler.set_epoch(epoch)",
        },
        why="One process keeps the loader's own order, shuffled by cfg.seed and anew in each "
        "epoch, as it was before TODO 8 (another order than the solution's on one rank).",
    ),
    "a sampler of its own": Answer(
        todo=8,
        edits={
            SAMPLER: """\
    class Share(torch.utils.data.Sampler):  # every nth image of one order, the same on all ranks
        epoch = 0

        def __init__(self):
            pass

        def __len__(self):
            return -(-len(sets.train) // run.world_size)

        def __iter__(self):
            order = torch.Generator().manual_seed(cfg.seed + self.epoch)
            images = torch.randperm(len(sets.train), generator=order).tolist()
            images += images[: -len(images) % run.world_size]
            return iter(images[run.rank :: run.world_size])

    sampler = Share()""",
            SET_EPOCH: "        sampler.epoch = epoch",
        },
        config={"epochs": 2},
        ranks=2,
        why="DistributedSampler, written out: the same order from seed + epoch, padded, and every "
        "rank its own part of it; image for image what the solution takes.",
    ),
    "hands DDP its device and a hook": Answer(
        todo=8,
        edits={
            DDP: """\
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        model = DDP(
            model, device_ids=None if device.type == "cpu" else [device],
            bucket_cap_mb=cfg.bucket_mb, gradient_as_bucket_view=True,
            find_unused_parameters=cfg.find_unused,
        )
        model.register_comm_hook(None, default_hooks.allreduce_hook)"""
        },
        ranks=2,
        why="device_ids names where model and batch are anyway; allreduce_hook is DDP's own "
        "average, bucket by bucket during backward, asked for by name.",
    ),
    "validates a slice, gathers and sums": Answer(
        todo=9,
        edits={
            VAL_SAMPLER: "    val_sampler = list(range(len(sets.val)))[run.rank :: run.world_size]",
            REDUCE: """\
        parts = [torch.zeros_like(totals) for _ in range(distributed.get_world_size())]
        distributed.all_gather(parts, totals)
        totals = torch.stack(parts).sum(dim=0)""",
        },
        config={"val_images": 61, "val_steps": 32},
        ranks=2,
        why="The same images, as a list; all ranks gather all counts, and each adds them up.",
    ),
    "adds up number by number": Answer(
        todo=9,
        edits={
            REDUCE: """\
        for place in range(len(totals)):
            distributed.all_reduce(totals[place : place + 1])"""
        },
        config={"val_images": 61, "val_steps": 32},
        ranks=2,
        why="Three messages in place of one; a slice is a view, so totals itself is added up.",
    ),
    "the last rank writes": Answer(
        todo=9,
        edits={SAVE: SAVE.replace("run.rank == 0", "run.rank == run.world_size - 1")},
        config={"save_weights": True},
        ranks=2,
        why="One of them writes, and weights are equal on all ranks; that it is rank 0 is custom. "
        "With one process it is rank 0. (BatchNorm's statistics are that rank's own, as always.)",
    ),
}
