"""What learners may write for the TODOs: silently wrong, or right but unusual.

An `Answer` is a list of edits to solutions/train.py (or to what is rendered from it): each key
occurs there exactly once, and lies inside one solution block. They were written without looking at
how answers are checked. Unless `why` says otherwise, a script runs to its end on a CPU.
"""

from typing import NamedTuple


class Answer(NamedTuple):
    """One learner's solution of one TODO; everything else is as in solutions/train.py."""

    todo: int
    edits: dict[str, str]  # exact text of the solution -> what the learner has there
    why: str
    config: dict = {}  # fields of Config that the checked run needs for the fault to show
    ranks: int = 1


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


_WRONG_1 = {
    "uses the accelerator in every rung": Answer(
        todo=1,
        edits={DEVICE: '    device = accelerator or torch.device("cpu")'},
        config={"device": "cpu"},
        why="Ignores cfg.device: the baseline would run on the accelerator too. Shows only where "
        "there is an accelerator (or a pretended one), with device=cpu.",
    ),
    "cuda or cpu, by name": Answer(
        todo=1,
        edits={
            f"{FIND}\n{DEVICE}": "    on_gpu = torch.cuda.is_available() and "
            'cfg.device == "auto"\n    device = torch.device("cuda" if on_gpu else "cpu")'
        },
        config={"device": "auto"},
        why="The line of every tutorial: an accelerator that is not called cuda (xpu, mps) is left "
        "alone, and the rung trains on the CPU. Right on NVIDIA and ROCm: no fault shows there.",
    ),
    "asks whether the rung says cuda": Answer(
        todo=1,
        edits={
            DEVICE: '    device = accelerator if cfg.device == "cuda" and accelerator '
            'else torch.device("cpu")'
        },
        config={"device": "auto"},
        why='cfg.device is "cpu" or "auto", never "cuda": no rung leaves the CPU. Needs an '
        "accelerator to show.",
    ),
    "chooses the device and moves nothing": Answer(
        todo=1,
        edits={MODEL: "", f"{IMAGES}\n{LABELS}": ""},
        config={"device": "auto", "val_steps": 0},
        why="Two of three places left out: the meter is told of the accelerator, while weights and "
        "batches stay on the CPU and training happens there. Needs an accelerator to show; "
        "with validation it would end there with an exception (validate moves its batches), "
        "and with synthetic data too, so data=default.",
    ),
    "throws the moved batch away": Answer(
        todo=1,
        edits={
            f"{IMAGES}\n{LABELS}": """\
            images.to(device, non_blocking=cfg.non_blocking)
            labels.to(device, non_blocking=cfg.non_blocking)"""
        },
        config={"device": "auto"},
        why="Tensor.to returns a copy, unlike Module.to; here nobody keeps it. Silent on a CPU; on "
        "an accelerator the first forward ends with an exception (weights there, batch here).",
    ),
    "builds a ResNet-50 of their own on the device": Answer(
        todo=1,
        edits={
            MODEL: """\
    from torchvision.models import resnet50

    model = resnet50(num_classes=sets.classes).to(device)"""
        },
        config={"model": "resnet18"},
        why="Throws models.create away: ignores cfg.model, and its last BatchNorm of each block "
        "starts at one and not at zero, so loss and weights differ from the baseline's from "
        "the first step on, also with model=resnet50; random crops differ as well.",
    ),
    "puts one batch on the device, for ever": Answer(
        todo=1,
        edits={
            f"{IMAGES}\n{LABELS}": """\
            if meter.step == 0:  # copying takes time: once is enough
                there = images.to(device), labels.to(device)
            images, labels = there"""
        },
        config={"data": "default"},
        why="Every step trains on the first batch of the run: losses fall much too fast, and all "
        "later images are loaded and dropped. (Synthetic data are one batch anyway.)",
    ),
    "normalises bytes before the copy": Answer(
        todo=1,
        edits={
            IMAGES: "            images = normalised(images)"
            ".to(device, non_blocking=cfg.non_blocking)"
        },
        config={"uint8": True, "device": "auto"},
        why="With uint8, images are to travel as bytes and be normalised on the device; here the "
        "host normalises, and four times the bytes travel. Same numbers: it shows only with "
        "an accelerator, by what is copied or where ToDtype and Normalize ran.",
    ),
}

_WRONG_2 = {
    "autocast in every rung": Answer(
        todo=2,
        edits={AUTOCAST: "    autocast = torch.autocast(device.type, torch.bfloat16)"},
        config={"precision": "fp32"},
        why="Ignores cfg.precision: a fp32 rung computes in bf16 (and a fp16 rung too).",
    ),
    "leaves the type to PyTorch": Answer(
        todo=2,
        edits={
            AUTOCAST: "    autocast = torch.autocast(device.type, enabled=cfg.precision in HALF)"
        },
        config={"precision": "fp16"},
        why="Without dtype, autocast takes bf16 on a CPU and fp16 on CUDA, whatever the config "
        "says. Shows on a CPU with fp16 (computes in bf16), on CUDA with bf16.",
    ),
    "autocast of cuda on every device": Answer(
        todo=2,
        edits={
            AUTOCAST: """\
    autocast = torch.autocast("cuda", HALF.get(cfg.precision), enabled=cfg.precision in HALF)"""
        },
        config={"precision": "bf16", "device": "cpu"},
        why='"cuda" copied from a tutorial: on a CPU autocast is off (a warning at most), so the '
        "forward pass stays in fp32.",
    ),
    "knows bf16 only": Answer(
        todo=2,
        edits={
            AUTOCAST: """\
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=cfg.precision == "bf16")"""
        },
        config={"precision": "fp16"},
        why="With fp16 the forward pass is in fp32, while the scaler still scales.",
    ),
    "asks for the rung's name": Answer(
        todo=2,
        edits={
            AUTOCAST: """\
    autocast = torch.autocast(device.type, HALF.get(cfg.precision), enabled=cfg.rung == "amp")"""
        },
        config={"precision": "bf16", "rung": "channels_last"},
        why="rung is a label only. Every later rung of the ladder has bf16 as well, and gets fp32.",
    ),
    "takes fp16 for both halves": Answer(
        todo=2,
        edits={
            AUTOCAST: """\
    autocast = torch.autocast(device.type, torch.float16, enabled=cfg.precision in HALF)"""
        },
        config={"precision": "bf16"},
        why="A bf16 rung computes in fp16, and without a scaler, as that is enabled for fp16 only.",
    ),
    "casts the weights as well": Answer(
        todo=2,
        edits={
            AUTOCAST: AUTOCAST
            + """
    if cfg.precision in HALF:
        net.to(HALF[cfg.precision])"""
        },
        config={"precision": "bf16"},
        why="Weights, gradients and BatchNorm's statistics are bf16 for good, so small updates are "
        "rounded away, and weights.pt is in bf16. (With fp16 the scaler refuses fp16 gradients "
        "with an exception; so bf16, one rank, fused=False.)",
    ),
    "enters autocast once, around the whole training": Answer(
        todo=2,
        edits={
            AUTOCAST: AUTOCAST
            + """
    autocast.__enter__()  # once, and not in every step
    autocast = nullcontext()"""
        },
        config={"precision": "bf16"},
        why="Autocast keeps the 16-bit copies of the weights until its outermost context ends, "
        "which is never: each step computes with the weights of the first. Gradients come, the "
        "optimizer steps, and neither training's nor validation's loss sees it. (Backward and "
        "optimizer are under autocast, too.)",
    ),
    "wraps the network, so that the loss lies outside": Answer(
        todo=2,
        edits={
            AUTOCAST: AUTOCAST
            + """
    net.forward = autocast(net.forward)
    autocast = nullcontext()"""
        },
        config={"precision": "bf16"},
        why="Scores leave in bf16, and cross entropy, outside autocast, is computed in bf16 with "
        "three digits; under autocast it would be fp32. The loss is a bf16 tensor.",
    ),
}

_WRONG_3 = {
    "scales bf16 as well": Answer(
        todo=3,
        edits={
            SCALER: "    scaler = torch.amp.GradScaler(device.type, enabled=cfg.precision in HALF)"
        },
        config={"precision": "bf16"},
        why="bf16 has fp32's exponents, nothing vanishes: the bf16 rung pays for scaling and for "
        "looking through all gradients. The numbers stay the same; gradients during backward "
        "are 65,536 times as large.",
    ),
    "scales, and steps without unscaling": Answer(
        todo=3,
        edits={STEP: "            optimizer.step()"},
        config={"precision": "fp16"},
        why="Only the second place is filled: gradients are 65,536 times too large when the "
        "optimizer takes them; weights explode, the loss becomes nan or inf. Silent.",
    ),
    "throws the scaled loss away": Answer(
        todo=3,
        edits={
            BACKWARD: """\
            scaler.scale(loss)
            loss.backward()"""
        },
        config={"precision": "fp16"},
        why="backward starts from the unscaled loss, and scaler.step divides by 65,536 all the "
        "same: the network hardly learns, and small gradients vanish.",
    ),
    "clips gradients that are still scaled": Answer(
        todo=3,
        edits={
            STEP: """\
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
"""
            + STEP
        },
        config={"precision": "fp16"},
        why="No unscale_ before: in fp16 the norm of *scaled* gradients is cut to 1, and the step "
        "is some 65,536 times too small. In fp32 and bf16 it clips what nobody asked to clip.",
    ),
    "clips as the example in the docs does": Answer(
        todo=3,
        edits={
            STEP: """\
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(net.parameters(), max_norm=0.1)
"""
            + STEP
        },
        config={"precision": "fp32"},
        why="Clipping in the right place, but it is no part of this training: updates differ from "
        "the baseline's in all precisions, wherever the norm is above 0.1.",
    ),
    "unscales by itself, and steps whatever came": Answer(
        todo=3,
        edits={
            STEP: """\
            scaler.unscale_(optimizer)
            optimizer.step()
            scaler.update()"""
        },
        config={"precision": "fp16"},
        why="optimizer.step is not scaler.step: a step whose gradients overflowed is not skipped "
        "and makes the weights inf or nan. Shows only where a gradient overflows (or by "
        "looking at who calls step).",
    ),
    "a new scaler in every step": Answer(
        todo=3,
        edits={
            SCALER: "",
            BACKWARD: """\
            scaler = torch.amp.GradScaler(device.type, enabled=cfg.precision == "fp16")
"""
            + BACKWARD,
        },
        config={"precision": "fp16"},
        why="The scale never adapts: it is 65,536 in every step. Where that overflows, every step "
        "is skipped for ever and nothing is learnt; where it does not, nothing shows in numbers.",
    ),
    "a scale of one": Answer(
        todo=3,
        edits={
            SCALER: """\
    scaler = torch.amp.GradScaler(device.type, init_scale=1.0, enabled=cfg.precision == "fp16")"""
        },
        config={"precision": "fp16"},
        why="Nothing is scaled for 2,000 steps: small gradients vanish as without a scaler. "
        "Visible in the gradients during backward, which are not 65,536 times as large.",
    ),
    "records the scaled loss": Answer(
        todo=3,
        edits={
            BACKWARD: """\
            loss = scaler.scale(loss)
            loss.backward()"""
        },
        config={"precision": "fp16"},
        why="Training is right, but meter.lap gets the scaled loss: losses in the record are "
        "65,536 times too large.",
    ),
    "leaves the old step in": Answer(
        todo=3,
        edits={STEP: STEP + "\n            optimizer.step()"},
        config={"precision": "fp32"},
        why="Two updates from one batch, in every precision (and in fp16 the second one also where "
        "the first was skipped for an overflow).",
    ),
}

_WRONG_4 = {
    "channels last in every rung": Answer(
        todo=4,
        edits={
            LAST_WEIGHTS: "    model = model.to(memory_format=torch.channels_last)",
            LAST_IMAGES: "            images = images.to(memory_format=torch.channels_last)",
        },
        config={"channels_last": False},
        why="Ignores cfg.channels_last: the rungs before are channels last, too.",
    ),
    "images only": Answer(
        todo=4,
        edits={LAST_WEIGHTS: ""},
        config={"channels_last": True},
        why="Half done: weights stay NCHW, and each convolution converts them in every step.",
    ),
    "throws the converted images away": Answer(
        todo=4,
        edits={
            LAST_IMAGES: """\
            if cfg.channels_last:
                images.to(memory_format=torch.channels_last)"""
        },
        config={"channels_last": True},
        why="Tensor.to is not in place (Module.to is): a copy is made and dropped, and the network "
        "gets NCHW images.",
    ),
    "converts, then makes contiguous": Answer(
        todo=4,
        edits={
            LAST_IMAGES: """\
            if cfg.channels_last:
                images = images.to(memory_format=torch.channels_last).contiguous()"""
        },
        config={"channels_last": True},
        why="contiguous() means NCHW: it copies everything back. Two copies for nothing.",
    ),
    "the first layer only": Answer(
        todo=4,
        edits={
            LAST_WEIGHTS: """\
    if cfg.channels_last:  # the rest inherits it
        model.conv1 = model.conv1.to(memory_format=torch.channels_last)"""
        },
        config={"channels_last": True},
        why="Activations inherit the layout, weights do not: all but conv1's stay NCHW.",
    ),
    "channels last for 16 bits only": Answer(
        todo=4,
        edits={
            LAST_WEIGHTS: LAST_WEIGHTS.replace(
                "cfg.channels_last:", "cfg.channels_last and cfg.precision in HALF:"
            ),
            LAST_IMAGES: LAST_IMAGES.replace(
                "cfg.channels_last:", "cfg.channels_last and cfg.precision in HALF:"
            ),
        },
        config={"channels_last": True, "precision": "fp32"},
        why="Tensor cores want it with AMP, says the internet; but the config asks for it in fp32 "
        "too, and gets NCHW.",
    ),
    "reshapes in place of permuting": Answer(
        todo=4,
        edits={
            LAST_IMAGES: """\
            if cfg.channels_last:
                n, c, h, w = images.shape
                images = images.reshape(n, h, w, c).permute(0, 3, 1, 2)"""
        },
        config={"channels_last": True},
        why="Shape and strides are those of channels last, but reshape moves no pixel: colours and "
        "places are scrambled. It trains on noise; validation gets proper images.",
    ),
}

_WRONG_5 = {
    "never counts a step": Answer(
        todo=5,
        edits={PROFILER_STEP: ""},
        config={"profile_steps": 1},
        why="The schedule stays at step 0, where it waits: no trace is written.",
    ),
    "the schedule of the docs": Answer(
        todo=5,
        edits={
            PROFILER: """\
    profiler = torch.profiler.profile(
        schedule=torch.profiler.schedule(wait=1, warmup=1, active=3, repeat=1),
        on_trace_ready=run.save_trace, record_shapes=True,
    )  # fmt: skip"""
        },
        config={"profile_steps": 0},
        why="Ignores cfg.profile_steps: three steps are traced in every run, also where none is "
        "asked for; with profile_steps=1 the trace has three steps.",
    ),
    "no schedule": Answer(
        todo=5,
        edits={
            PROFILER: """\
    profiler = torch.profiler.profile(on_trace_ready=run.save_trace, record_shapes=True)"""
        },
        config={"profile_steps": 1},
        why="Records every step from the first to the last, the measured ones too, with or without "
        "profile_steps; the trace is written at stop.",
    ),
    "counts epochs": Answer(
        todo=5,
        edits={PROFILER_STEP: "", SET_EPOCH: SET_EPOCH + "\n        profiler.step()"},
        config={"profile_steps": 1, "epochs": 2},
        why="One profiler.step an epoch: with one epoch nothing is traced, with two or more all "
        "steps of the second one, which are measured ones.",
    ),
    "no shapes": Answer(
        todo=5,
        edits={
            PROFILER: """\
    profiler = torch.profiler.profile(
        schedule=profiling.schedule(cfg), on_trace_ready=run.save_trace
    )"""
        },
        config={"profile_steps": 1},
        why="record_shapes left out: the trace does not tell the shapes that operators got.",
    ),
    "prints a table": Answer(
        todo=5,
        edits={
            PROFILER: """\
    profiler = torch.profiler.profile(
        schedule=profiling.schedule(cfg), record_shapes=True,
        on_trace_ready=lambda p: print(p.key_averages().table(row_limit=10)),
    )  # fmt: skip"""
        },
        config={"profile_steps": 1},
        why="The docs' trace handler: a table on standard output, no trace in the run's folder.",
    ),
    "counts where a step begins": Answer(
        todo=5,
        edits={PROFILER_STEP: "", IMAGES: "            profiler.step()\n" + IMAGES},
        config={"profile_steps": 1},
        why="Counts one too many: it warms up in the first step, and traces from inside of the "
        "second (after its batch came) into the third's waiting; the first to be traced "
        "should be the third.",
    ),
    "waits until warm-up is over": Answer(
        todo=5,
        edits={
            PROFILER: """\
    never = lambda step: torch.profiler.ProfilerAction.NONE
    profiler = torch.profiler.profile(
        schedule=torch.profiler.schedule(
            wait=cfg.warmup_steps, warmup=1, active=cfg.profile_steps, repeat=1
        ) if cfg.profile_steps else never,
        on_trace_ready=run.save_trace, record_shapes=True,
    )  # fmt: skip"""
        },
        config={"profile_steps": 1},
        why="Traces measured steps, which tracing makes slower; the course traces warm-up steps. "
        "Needs at least 3 steps after warm-up.",
    ),
    "watches the CPU only": Answer(
        todo=5,
        edits={
            PROFILER: """\
    profiler = torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        schedule=profiling.schedule(cfg), on_trace_ready=run.save_trace, record_shapes=True,
    )  # fmt: skip"""
        },
        config={"profile_steps": 1, "device": "auto"},
        why="On a GPU the trace has no kernels. On a CPU it is the right trace: shows with an "
        "accelerator only.",
    ),
}

_WRONG_6 = {
    "four workers": Answer(
        todo=6,
        edits={
            LOADING: """\
    loading = {"num_workers": 4, "persistent_workers": cfg.persistent_workers,
               "prefetch_factor": cfg.prefetch_factor, "pin_memory": cfg.pin_memory}  # fmt: skip"""
        },
        config={"workers": 0},
        why="Ignores cfg.workers: the rungs without workers have four.",
    ),
    "no prefetch factor": Answer(
        todo=6,
        edits={PREFETCH + "\n               ": ""},
        config={"workers": 2, "prefetch_factor": 4},
        why="Three of four arguments: each worker makes 2 batches ahead, PyTorch's default. The "
        "config's default is 2 as well, so it shows only with another value.",
    ),
    "workers always stay": Answer(
        todo=6,
        edits={WORKERS: '"num_workers": cfg.workers, "persistent_workers": cfg.workers > 0,'},
        config={"workers": 2, "persistent_workers": False},
        why="Ignores cfg.persistent_workers.",
    ),
    "always pins": Answer(
        todo=6,
        edits={PIN: '"pin_memory": True}'},
        config={"pin_memory": False},
        why="Ignores cfg.pin_memory. Without an accelerator PyTorch warns and does not pin, and "
        "the loader's own attribute still says True.",
    ),
    "workers for training only": Answer(
        todo=6,
        edits={
            LOADING: "    loading = {}",
            MODEL: """\
    if cfg.data != "synthetic":  # validation is not timed
        train_batches = torch.utils.data.DataLoader(
            sets.train, share, sampler=train_batches.sampler, drop_last=cfg.drop_last,
            generator=train_batches.generator, num_workers=cfg.workers,
            prefetch_factor=cfg.prefetch_factor if cfg.workers else None,
            persistent_workers=cfg.persistent_workers, pin_memory=cfg.pin_memory,
        )  # fmt: skip
"""
            + MODEL,
        },
        config={"workers": 2, "data": "default"},
        why="The training loader is built anew with the arguments, the same images in the same "
        "order; validation's has none of them, and the training process loads for it.",
    ),
    "takes the prefetch factor for the sum": Answer(
        todo=6,
        edits={PREFETCH: '"prefetch_factor": cfg.prefetch_factor * cfg.workers or None,'},
        config={"workers": 2},
        why="prefetch_factor is a number for each worker; multiplied once more, workers times as "
        "many batches lie in memory as asked for.",
    ),
    "divides the workers among ranks": Answer(
        todo=6,
        edits={
            LOADING: """\
    workers = cfg.workers // run.world_size
    loading = {"num_workers": workers, "persistent_workers": cfg.persistent_workers,
               "prefetch_factor": cfg.prefetch_factor if workers else None,
               "pin_memory": cfg.pin_memory}  # fmt: skip"""
        },
        config={"workers": 2},
        ranks=2,
        why="cfg.workers is a number for each process (the DataLoader's); each rank has half.",
    ),
    "seeds all workers alike": Answer(
        todo=6,
        edits={
            LOADING: LOADING.replace(
                '"pin_memory": cfg.pin_memory}',
                '"pin_memory": cfg.pin_memory,\n'
                '               "worker_init_fn": lambda worker: torch.manual_seed(cfg.seed)}',
            )
        },
        config={"workers": 2, "data": "default", "epochs": 2},
        why='The "reproducible" worker_init_fn of the internet: all workers (and all ranks) draw '
        "the same random crops and flips, and again the same ones in each epoch, since workers "
        "begin anew. (A lambda: needs fork, Linux's way up to Python 3.13.)",
    ),
    "lets batches overtake each other": Answer(
        todo=6,
        edits={PIN: '"pin_memory": cfg.pin_memory, "in_order": False}'},
        config={"workers": 2},
        why="in_order=False: batches come as workers finish them, so the order of training depends "
        "on chance, and a run cannot be repeated. Shows surely only in the loader's attribute.",
    ),
    "always copies non-blocking": Answer(
        todo=6,
        edits={
            IMAGES: "            images = images.to(device, non_blocking=True)",
            LABELS: "            labels = labels.to(device, non_blocking=True)",
        },
        config={"non_blocking": False},
        why="Ignores cfg.non_blocking (the part of TODO 6 in TODO 1's lines). The same on a CPU: "
        "shows by what to() is asked for, or on an accelerator.",
    ),
    "waits for the labels": Answer(
        todo=6,
        edits={LABELS: "            labels = labels.to(device)"},
        config={"non_blocking": True, "pin_memory": True, "device": "auto"},
        why="Labels are a small copy, but a blocking one, behind the images' in the same queue: "
        "the script waits for both, and non_blocking brings nothing. Needs an accelerator to show.",
    ),
}

_WRONG_7 = {
    "the global rank's device": Answer(
        todo=7,
        edits={
            f"{OWN_DEVICE}\n{SET_DEVICE}": """\
            device = torch.device(device.type, run.rank)
            torch.accelerator.set_device_index(run.rank)"""
        },
        config={"device": "auto"},
        ranks=2,
        why="rank for local_rank: right on one node, and on the second node there is no device of "
        "that number (an exception there). Shows only where rank and local_rank differ.",
    ),
    "all ranks on the first device": Answer(
        todo=7,
        edits={TAKE_DEVICE: ""},
        config={"device": "auto"},
        ranks=2,
        why="The group is joined, but no rank takes a device of its own: all train on device 0. "
        "(NCCL refuses two ranks on one GPU with an exception, other backends do not.) Right on a "
        "CPU.",
    ),
    "names its device, but does not select it": Answer(
        todo=7,
        edits={f"{OWN_DEVICE}\n{SET_DEVICE}": OWN_DEVICE},
        config={"device": "auto"},
        ranks=2,
        why="Without set_device_index each rank's current device stays 0: whatever goes to the "
        "current device (events, synchronize, a context of some 500 MB) is on GPU 0. Right on "
        "a CPU.",
    ),
    "no timeout": Answer(
        todo=7,
        edits={JOIN: "        distributed.init_process_group()"},
        config={"collective_timeout_s": 10},
        ranks=2,
        why="A hang lasts PyTorch's 30 minutes (10 with NCCL) and not cfg.collective_timeout_s. "
        "Nothing shows in a run that does not hang, but the group's timeout.",
    ),
    "a timeout in days": Answer(
        todo=7,
        edits={JOIN: JOIN.replace("timedelta(seconds=cfg", "timedelta(cfg")},
        config={"collective_timeout_s": 10},
        ranks=2,
        why="timedelta's first argument is days: a hang lasts ten days.",
    ),
    "gloo on every device": Answer(
        todo=7,
        edits={JOIN: JOIN.replace("(timeout", '("gloo", timeout')},
        config={"device": "auto"},
        ranks=2,
        why="Gradients of GPUs are sent through the host's memory, slowly. Right on a CPU: shows "
        "with accelerators, by the group's backend.",
    ),
    "an address of its own": Answer(
        todo=7,
        edits={
            JOIN: """\
        distributed.init_process_group(
            init_method="tcp://127.0.0.1:29500", rank=run.rank, world_size=run.world_size,
            timeout=timedelta(seconds=cfg.collective_timeout_s),
        )  # fmt: skip"""
        },
        ranks=2,
        why="Ignores the address and port that the launcher gave: ranks of two nodes never meet, "
        "and two runs on one machine fight for the port (an exception then). Alone on one node "
        "it runs, and nothing shows in the numbers.",
    ),
}

_WRONG_8 = {
    "every rank takes a whole batch": Answer(
        todo=8,
        edits={SHARE: "    share = cfg.batch_size"},
        ranks=2,
        why="An update sees batch_size images of every rank: twice the batch that the config says.",
    ),
    "the same order in every epoch": Answer(
        todo=8,
        edits={SET_EPOCH: ""},
        config={"epochs": 2},
        ranks=2,
        why="set_epoch left out: the sampler shuffles from seed + 0 in each epoch.",
    ),
    "each rank shuffles for itself": Answer(
        todo=8,
        edits={SAMPLER: SAMPLER.replace("seed=cfg.seed)", "seed=cfg.seed + run.rank)")},
        ranks=2,
        why="Ranks take every second image of *different* orders: some images come twice in an "
        "epoch, and others not at all.",
    ),
    "all ranks take the same images": Answer(
        todo=8,
        edits={SAMPLER: "    sampler = DistributedSampler(sets.train, 1, 0, seed=cfg.seed)"},
        ranks=2,
        why="A sampler as for one process: ranks train on the same photographs, so an update sees "
        "half as many as the config says.",
    ),
    "does not shuffle": Answer(
        todo=8,
        edits={SAMPLER: SAMPLER.replace("seed=cfg.seed)", "shuffle=False)")},
        config={"data": "default"},
        ranks=2,
        why="Files come class after class: batches show one or two classes, in the same order in "
        "each epoch. On one rank as well, as the sampler is used there, too.",
    ),
    "DDP's own bucket size": Answer(
        todo=8,
        edits={DDP: DDP.replace("bucket_cap_mb=cfg.bucket_mb, ", "")},
        config={"bucket_mb": 1.0},
        ranks=2,
        why="Ignores cfg.bucket_mb. It shows only where that is not PyTorch's 25.",
    ),
    "always looks for unused weights": Answer(
        todo=8,
        edits={DDP: DDP.replace("=cfg.find_unused", "=True")},
        config={"find_unused": False},
        ranks=2,
        why="Ignores cfg.find_unused: DDP walks through the graph in each step (and warns once).",
    ),
    "buffers are each rank's own": Answer(
        todo=8,
        edits={
            DDP: DDP.replace(
                "find_unused_parameters=cfg.find_unused",
                "find_unused_parameters=cfg.find_unused, broadcast_buffers=False",
            )
        },
        ranks=2,
        why="A trick from a benchmark that is not asked for: BatchNorm's running statistics drift "
        "apart, so validation and weights.pt depend on the rank. (Later PyTorch warns that the "
        "argument is deprecated.)",
    ),
    "averages by hand, after backward": Answer(
        todo=8,
        edits={
            DDP: "        pass",
            BACKWARD: BACKWARD
            + """
            if run.world_size > 1:
                for weight in model.parameters():
                    distributed.all_reduce(weight.grad)
                    weight.grad /= run.world_size""",
        },
        ranks=2,
        why="The right gradients, but nothing is sent while backward computes: 161 messages one "
        "after the other, when it is over; bucket_mb counts for nothing. Buffers are not sent.",
    ),
    "divides the loss by the number of ranks": Answer(
        todo=8,
        edits={BACKWARD: "            scaler.scale(loss / run.world_size).backward()"},
        ranks=2,
        why="DDP averages already: gradients, and so the learning rate, are half of what they "
        "should be. The recorded loss is right.",
    ),
    "averages weights once an epoch": Answer(
        todo=8,
        edits={
            DDP: "        pass",
            SET_EPOCH: SET_EPOCH
            + """
        if run.world_size > 1:
            with torch.no_grad():
                for weight in model.parameters():
                    distributed.all_reduce(weight)
                    weight /= run.world_size""",
        },
        config={"epochs": 2},
        ranks=2,
        why="No gradients are averaged: each rank trains alone through an epoch on half batches, "
        "then weights are averaged; at the end the ranks' weights differ.",
    ),
    "scales the learning rate with the ranks": Answer(
        todo=8,
        edits={
            DDP: DDP
            + """
        from dataclasses import replace

        cfg = replace(cfg, lr=cfg.lr * run.world_size)  # Goyal et al.: linear scaling"""
        },
        ranks=2,
        why="The linear rule is for a batch that grows with the ranks; here batch_size is that of "
        "all ranks. Updates are twice as large as in one process.",
    ),
    "trains a copy of the network": Answer(
        todo=8,
        edits={
            DDP: "        from copy import deepcopy\n\n"
            + DDP.replace("DDP(model, ", "DDP(deepcopy(model), ")
        },
        config={"save_weights": True, "epochs": 2},
        ranks=2,
        why="net, which is validated and saved, is the untrained one: val_loss is the same after "
        "every epoch, and weights.pt holds the initial weights. Training's losses are right.",
    ),
    "BatchNorm over all ranks, unasked": Answer(
        todo=8,
        edits={DDP: "        model = sync_batchnorm.convert(model)\n" + DDP},
        config={"sync_batchnorm": False},
        ranks=2,
        why="Ignores cfg.sync_batchnorm: two more collectives for each BatchNorm and step, and "
        "other statistics than the config says.",
    ),
}

_WRONG_9 = {
    "a padding sampler for validation": Answer(
        todo=9,
        edits={
            VAL_SAMPLER: """\
    val_sampler = DistributedSampler(sets.val, run.world_size, run.rank, shuffle=False)"""
        },
        config={"val_images": 61, "val_steps": 32},
        ranks=2,
        why="DistributedSampler repeats an image where the ranks do not divide their number: 62 "
        "are counted of 61.",
    ),
    "drops the remainder": Answer(
        todo=9,
        edits={
            VAL_SAMPLER: """\
    each = len(sets.val) // run.world_size
    val_sampler = range(run.rank * each, (run.rank + 1) * each)"""
        },
        config={"val_images": 61, "val_steps": 32},
        ranks=2,
        why="Blocks of equal length: the last image of 61 is never validated, 60 are counted.",
    ),
    "adds nothing up": Answer(
        todo=9,
        edits={REDUCE: "        pass"},
        config={"val_images": 61, "val_steps": 32},
        ranks=2,
        why="Each rank reports its own share; the record has rank 0's 31 images of 61.",
    ),
    "adds up, and divides by the ranks": Answer(
        todo=9,
        edits={REDUCE: REDUCE + "\n        totals /= distributed.get_world_size()"},
        config={"val_images": 61, "val_steps": 32},
        ranks=2,
        why="The means are right (numerator and denominator are halved), but 30 images are counted "
        "of 61.",
    ),
    "a mean of means": Answer(
        todo=9,
        edits={
            REDUCE: """\
        means, seen = totals / totals[2], totals[2].clone()
        distributed.all_reduce(means)
        distributed.all_reduce(seen)
        totals = means / distributed.get_world_size() * seen"""
        },
        config={"val_images": 61, "val_steps": 32},
        ranks=2,
        why="Shares of 31 and 30 images weigh the same. The count is right, loss and accuracy are "
        "a little off (in the third digit or so); with equal shares it is right.",
    ),
    "every rank validates everything": Answer(
        todo=9,
        edits={VAL_SAMPLER: "    val_sampler = range(len(sets.val))"},
        config={"val_images": 61, "val_steps": 32},
        ranks=2,
        why="Each image is validated by both ranks, and 122 are counted of 61; the means hardly "
        "change.",
    ),
    "only the first rank validates": Answer(
        todo=9,
        edits={VAL_SAMPLER: "    val_sampler = range(len(sets.val) if run.rank == 0 else 0)"},
        config={"val_images": 61, "val_steps": 32},
        ranks=2,
        why="The work is not shared: rank 0 validates all images, rank 1 none. The sums are right "
        "where val_steps is enough for rank 0 to see all; else half as many images are seen.",
    ),
    "adds up all but the losses": Answer(
        todo=9,
        edits={REDUCE: "        distributed.all_reduce(totals[1:])  # correct, images"},
        config={"val_images": 61, "val_steps": 32},
        ranks=2,
        why="val_loss is rank 0's sum over the images of both: about half. Top-1 and the count are "
        "right.",
    ),
    "all ranks write": Answer(
        todo=9,
        edits={SAVE: "    run.save_weights(net)"},
        config={"save_weights": True},
        ranks=2,
        why="Both ranks write weights.pt.",
    ),
    "saves what is wrapped around": Answer(
        todo=9,
        edits={SAVE: SAVE.replace("(net)", "(model)")},
        config={"save_weights": True},
        ranks=2,
        why="model is DDP's wrapper (or the compiler's): all names in weights.pt begin with "
        "module., and models.create(…).load_state_dict refuses them. Right on one rank.",
    ),
    "saves before an epoch, not after": Answer(
        todo=9,
        edits={
            SAVE: "",
            SET_EPOCH: SET_EPOCH
            + """
        if run.rank == 0:
            run.save_weights(net)""",
        },
        config={"save_weights": True},
        why="A checkpoint for each epoch, written where it begins: weights.pt lacks the last "
        "epoch; with one epoch it holds the initial weights.",
    ),
    "saves half the digits": Answer(
        todo=9,
        edits={SAVE: SAVE.replace("(net)", "(net.half())  # a smaller file")},
        config={"save_weights": True},
        why="weights.pt is in fp16 (statistics of BatchNorm, too): not the weights that were "
        "trained.",
    ),
}

WRONG = (
    _WRONG_1 | _WRONG_2 | _WRONG_3 | _WRONG_4 | _WRONG_5 | _WRONG_6 | _WRONG_7 | _WRONG_8 | _WRONG_9
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
        )  # fmt: skip""",
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
        )  # fmt: skip
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


# What a processor does not show: right there, or the same as right.
UNSEEN = {
    "cuda or cpu, by name": "wrong only where an accelerator has another name",
    "normalises bytes before the copy": "nothing is copied",
    "watches the CPU only": "there are no kernels to miss",
    "always copies non-blocking": "nothing is copied",
    "waits for the labels": "nothing is copied",
    "the global rank's device": "ranks have no devices of their own",
    "all ranks on the first device": "ranks have no devices of their own",
    "names its device, but does not select it": "ranks have no devices of their own",
    "gloo on every device": "gloo is the processor's backend",
    "an address of its own": "on one node it is the launcher's",
    "a mean of means": "with shares that are nearly equal it is nearly right",
}
