"""Silently wrong, TODOs 1 to 5."""

from answers.lines import (
    AUTOCAST,
    BACKWARD,
    DEVICE,
    FIND,
    IMAGES,
    LABELS,
    LAST_IMAGES,
    LAST_WEIGHTS,
    MODEL,
    PROFILER,
    PROFILER_STEP,
    SCALER,
    SET_EPOCH,
    STEP,
    Answer,
)

WRONG = {
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
    "builds a ResNet of their own on the device": Answer(
        todo=1,
        edits={
            MODEL: """\
    from torchvision.models import resnet18

    model = resnet18(num_classes=sets.classes).to(device)"""
        },
        config={"model": "resnet18"},
        why="Throws models.create away: ignores cfg.model, and its last BatchNorm of each block "
        "starts at one and not at zero, so loss and weights differ from the baseline's from "
        "the first step on, also with model=resnet18; random crops differ as well.",
    ),
    "puts one batch on the device, for ever": Answer(
        todo=1,
        edits={
            f"{IMAGES}\n{LABELS}": """\
            if meter.step == 0:  # copying takes time: once is enough
                there = images.to(device), labels.to(device)
            images, labels = there"""
        },
        config={"data": "default", "lr": 0.3},
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
        said=r"^the losses are 65,5\d\d times those before: the scaled loss was recorded",
    ),
    "leaves the old step in": Answer(
        todo=3,
        edits={STEP: STEP + "\n            optimizer.step()"},
        config={"precision": "fp32"},
        why="Two updates from one batch, in every precision (and in fp16 the second one also where "
        "the first was skipped for an overflow).",
    ),
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
    )"""
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
    )"""
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
    )"""
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
    )"""
        },
        config={"profile_steps": 1, "device": "auto"},
        why="On a GPU the trace has no kernels. On a CPU it is the right trace: shows with an "
        "accelerator only.",
    ),
}
