"""Mistakes that many make, each with the words that a check must find for it."""

from answers.lines import (
    AUTOCAST,
    BACKWARD,
    DDP,
    IMAGES,
    JOIN,
    LABELS,
    MODEL,
    OWN_DEVICE,
    PIN,
    PREFETCH,
    PROFILER,
    PROFILER_STEP,
    REDUCE,
    SAMPLER,
    SCALER,
    SET_DEVICE,
    SET_EPOCH,
    STEP,
    TAKE_DEVICE,
    TIMEDELTA,
    VAL_SAMPLER,
    WORKERS,
    Answer,
)

ENTER = "            with autocast:\n                scores"

WRONG = {
    "leaves the network behind": Answer(
        todo=1,
        edits={MODEL: ""},
        why="Weights on the host, batches on the accelerator: the first convolution refuses.",
        said=r"pretended accelerator, the first step fails",
    ),
    "leaves labels behind": Answer(
        todo=1,
        edits={LABELS: ""},
        why="Only the images are moved: the loss refuses.",
        said=r"pretended accelerator, the first step fails",
    ),
    "makes autocast and never enters it": Answer(
        todo=2,
        edits={ENTER: ENTER.replace("autocast:", "nullcontext():")},
        why="The forward pass of training stays in fp32; validation alone is in bf16.",
        said=r"^forward: the config asks for bf16, and the convolutions ran fp32: enter",
    ),
    "validates without autocast": Answer(
        todo=2,
        edits={"cfg, device, autocast))": "cfg, device, nullcontext()))"},
        why="Autocast around training only.",
        said=r"^validation: the config asks for bf16, and the convolutions ran fp32",
    ),
    "never updates": Answer(
        todo=2,
        edits={STEP: "            scaler.update()"},
        why="The optimizer's step is gone.",
        said="optimizer changed no weight",
    ),
    "bf16 whenever it is not fp32": Answer(
        todo=3,
        edits={
            AUTOCAST: """\
    half = cfg.precision != "fp32"
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=half)"""
        },
        config={"precision": "fp16"},
        why="Under the fp16 rung autocast takes bf16; the scaler works, and nobody looks.",
        said=r"^forward: the config asks for fp16, and the convolutions ran bf16: enter",
    ),
    "never updates the scale": Answer(
        todo=3,
        edits={STEP: "            scaler.step(optimizer)"},
        config={"precision": "fp16"},
        why="Without update() a scaler refuses its next step.",
        said="update",
    ),
    "a scaler that is always off": Answer(
        todo=3,
        edits={SCALER: "    scaler = torch.amp.GradScaler(device.type, enabled=False)"},
        config={"precision": "fp16"},
        why="Nothing is scaled, and the step that overflows is made.",
        said=r"multiplied by 1; with this precision it is to be scaled",
    ),
    "a scaler that is always on": Answer(
        todo=3,
        edits={SCALER: "    scaler = torch.amp.GradScaler(device.type)"},
        config={"precision": "fp32"},
        why="Ignores cfg.precision.",
        said=r"multiplied by 65536; with this precision it is to be multiplied by 1$",
    ),
    "two updates a step": Answer(
        todo=3,
        edits={STEP: STEP + "\n            scaler.step(optimizer)\n            scaler.update()"},
        config={"precision": "fp32"},
        why="The lines are there twice.",
        said=r"^the optimizer stepped 2 times in a step",
    ),
    "traces a part of the step": Answer(
        todo=5,
        edits={PROFILER_STEP: "", BACKWARD: "            profiler.step()\n" + BACKWARD},
        config={"profile_steps": 1},
        why="Counted before backward: half of a step and half of the next are traced.",
        said=r"^the profiler traced steps 1 in part, 2 in part, and the config asks for step 2",
    ),
    "traces again and again": Answer(
        todo=5,
        edits={
            PROFILER: PROFILER.replace(
                "profiling.schedule(cfg)",
                "torch.profiler.schedule(wait=1, warmup=1, active=1, repeat=0)",
            )
        },
        config={"profile_steps": 1, "steps": 7},
        why="A schedule that repeats: measured steps are traced as well, and without being asked.",
        said=r"^the profiler traced steps 2, 5",
    ),
    "traces where nobody asked": Answer(
        todo=5,
        edits={
            PROFILER: PROFILER.replace(
                "profiling.schedule(cfg)",
                "torch.profiler.schedule(wait=1, warmup=1, active=1, repeat=1)",
            )
        },
        config={"profile_steps": 0},
        why="The run of the step before is traced, too.",
        said=r"^the profiler traced step 2, and the config asks for no step",
    ),
    "keeps no trace": Answer(
        todo=5,
        edits={PROFILER: PROFILER.replace("on_trace_ready=run.save_trace, ", "")},
        config={"profile_steps": 1},
        why="Nobody writes what was traced.",
        said=r"^no trace was written",
    ),
    "hands nothing on": Answer(
        todo=6,
        edits={"val_sampler=val_sampler, **loading": "val_sampler=val_sampler"},
        why="The arguments are made, and no loader gets them.",
        said=r"^the training DataLoader has num_workers=0, persistent_workers=False, "
        r"prefetch_factor=None, and the config asks num_workers=2, persistent_workers=True, "
        r"prefetch_factor=3$",
    ),
    "leaves workers to PyTorch": Answer(
        todo=6,
        edits={f"{WORKERS}\n               {PREFETCH}\n               ": ""},
        why="Pinned memory alone; the training process loads by itself.",
        said=r"num_workers=0, .* and the config asks num_workers=2",
    ),
    "leaves pinning to PyTorch": Answer(
        todo=6,
        edits={f",\n               {PIN}": "}"},
        why="Memory is not pinned, which a processor alone does not show.",
        said=r"the DataLoader has pin_memory=False, and the config asks True$",
    ),
    "as many workers in every run": Answer(
        todo=6,
        edits={WORKERS: WORKERS.replace("cfg.workers", "4", 1)},
        config={"workers": 2},
        why="Both runs load with four: one cause, told once.",
        said=r"^the training DataLoader has num_workers=4, and the config asks num_workers=2$",
        both=True,
    ),
    "pins where nobody waits": Answer(
        todo=6,
        edits={PIN: '"pin_memory": cfg.non_blocking}'},
        why="One field for the other: in most configs both are on, or both off.",
        said=r"^rehearsed .* the DataLoader has pin_memory=False, and the config asks True$",
    ),
    "waits where nothing is pinned": Answer(
        todo=6,
        edits={
            IMAGES: IMAGES.replace("cfg.non_blocking", "cfg.pin_memory"),
            LABELS: LABELS.replace("cfg.non_blocking", "cfg.pin_memory"),
        },
        why="Right of itself, and not what the config asks.",
        said=r"^rehearsed .* images and labels come with non_blocking=True, and the config asks F",
    ),
    "prefetches without workers": Answer(
        todo=6,
        edits={" if cfg.workers else None": ""},
        config={"workers": 0},
        why="PyTorch refuses prefetch_factor where no worker could prefetch.",
        said="prefetch_factor",
    ),
    "joins no group": Answer(
        todo=7,
        edits={JOIN: ""},
        ranks=2,
        why="Two processes, each for itself.",
        said="process group",
    ),
    "joins a group on GPUs only": Answer(
        todo=7,
        edits={
            f"    if run.world_size > 1:\n{TAKE_DEVICE}": "    if run.world_size > 1 and "
            f'device.type != "cpu":\n{TAKE_DEVICE}'
        },
        ranks=2,
        why="gloo joins processors as well.",
        said="process group",
    ),
    "each joins a group of its own": Answer(
        todo=7,
        edits={JOIN: JOIN.replace("(timeout", "(rank=0, world_size=1, timeout")},
        ranks=2,
        why="From an example for one process: every rank is the first of one.",
        said=r"joins with rank=0 and world_size=1: leave both to the launcher",
    ),
    "no sampler": Answer(
        todo=8,
        edits={SAMPLER: "    sampler = None", SET_EPOCH: "        pass"},
        ranks=2,
        why="Each rank shuffles all images alike: both take the same ones.",
        said=r"^two ranks began an epoch with the same images",
    ),
    "wraps the network and calls the bare one": Answer(
        todo=8,
        edits={DDP: DDP.replace("model = DDP(", "net = DDP(")},
        ranks=2,
        why="DDP is made and never called: model is the bare network, and no gradient is sent.",
        said=r"^no gradient was sent to another rank: wrap the model .* call what it gives",
    ),
    "no wrapper": Answer(
        todo=8,
        edits={DDP: "        pass"},
        ranks=2,
        why="Two trainings that know nothing of each other.",
        said=r"^no gradient was sent to another rank[^;]*$",
    ),
    "sums the gradients": Answer(
        todo=8,
        edits={BACKWARD: BACKWARD.replace("(loss)", "(loss * run.world_size)")},
        ranks=2,
        why="The mean that DDP makes is undone.",
        said=r"^the first gradients are 1\.9\d times those of one process",
    ),
    "averages the loss": Answer(
        todo=8,
        edits={
            DDP: "        pass",
            BACKWARD: """\
            if run.world_size > 1:
                distributed.all_reduce(loss.data)
                loss.data /= run.world_size
"""
            + BACKWARD,
        },
        ranks=2,
        why="The loss is averaged over ranks, and no gradient is: each trains for itself.",
        said=r"^gradients were sent, but not by DistributedDataParallel",
    ),
    "the learning rate times the ranks": Answer(
        todo=8,
        edits={"create(weights, cfg)": "create(weights, replace(cfg, lr=cfg.lr * run.world_size))"},
        ranks=2,
        why="The batch is that of all ranks, and has not grown.",
        said=r"^the optimizer has lr=0.002, and the config asks lr=0.001$",
    ),
    "adds up losses and counts alone": Answer(
        todo=9,
        edits={
            REDUCE: "        distributed.all_reduce(totals[:1])  # losses\n"
            "        distributed.all_reduce(totals[2:])  # images"
        },
        ranks=2,
        why="Right answers are rank 0's, and divided by the images of both.",
        said=r"^the ranks disagree about val_top1 \(",
    ),
    "both validate the first half": Answer(
        todo=9,
        edits={VAL_SAMPLER: "    val_sampler = range(0, len(sets.val), run.world_size)"},
        ranks=2,
        why="run.rank is forgotten: every second image is validated twice, the others never.",
        said=r"^ranks validated the same images, 8 of them: each takes a share of its own$",
    ),
}

RIGHT = {
    "its place on the node, from the environment": Answer(
        todo=7,
        edits={
            OWN_DEVICE: """\
            device = torch.device(device.type, int(os.environ["LOCAL_RANK"]))""",
            SET_DEVICE: "            torch.accelerator.set_device_index(device)",
            TIMEDELTA: f"import os\n{TIMEDELTA}",
        },
        ranks=2,
        why="torchrun sets LOCAL_RANK, and the course's jobs do so as well.",
    ),
    "its place on the node, by counting": Answer(
        todo=7,
        edits={
            OWN_DEVICE: """\
            place = run.rank % torch.accelerator.device_count()
            device = torch.device(device.type, place)""",
            SET_DEVICE: "            torch.accelerator.set_device_index(place)",
        },
        ranks=2,
        why="As in PyTorch's tutorials: nodes have equally many devices.",
    ),
    "selects its device, and names it without number": Answer(
        todo=7,
        edits={f"{OWN_DEVICE}\n{SET_DEVICE}": SET_DEVICE},
        ranks=2,
        why="A device without a number is the current one.",
    ),
    "says how many they are": Answer(
        todo=7,
        edits={JOIN: JOIN.replace("(timeout", "(world_size=run.world_size, timeout")},
        ranks=2,
        why="One of the two that the environment tells.",
    ),
    "a tensor of places": Answer(
        todo=9,
        edits={VAL_SAMPLER: VAL_SAMPLER.replace("range(", "torch.arange(")},
        ranks=2,
        why="A DataLoader takes any numbers.",
    ),
    "pins where there is something to copy to": Answer(
        todo=6,
        edits={PIN: '"pin_memory": cfg.pin_memory and device.type != "cpu"}'},
        why="A processor's batches need no pinned memory; PyTorch would warn.",
    ),
    "a static scale by hand": Answer(
        todo=3,
        edits={
            SCALER: '    scale = 1024.0 if cfg.precision == "fp16" else 1.0',
            BACKWARD: "            (loss * scale).backward()",
            STEP: """\
            gradients = [weight.grad for weight in net.parameters()]
            torch._foreach_div_(gradients, scale)
            if all(each.isfinite().all() for each in gradients):
                optimizer.step()""",
        },
        config={"precision": "fp16"},
        both=True,
        why="One scale for the whole run, and steps that overflow are left out: Apex's O2 had it.",
    ),
}
