"""TODOs 33 and 34: which stages a rank keeps, and in which order it works."""

from answers.lines import Answer

KEPT = "        net = nn.ModuleList(pipelines.Stage(parts[number], autocast) for number in numbers)"
STAGES = "        stages = [PipelineStage(own, at, count, device) for own, at in zip(net, numbers)]"
GPIPE = "        schedule = ScheduleGPipe(stages[0], micro_batches, loss_fn=criterion)"
NUMBERS = "        numbers, count = pipelines.stage_numbers(cfg.pipeline, run.rank, run.world_size)"
ORDER = (
    "        schedule = pipelines.create_schedule(cfg.pipeline, stages, micro_batches, criterion)"
)
OPTIMIZER = "    optimizer = optimizers.create(net.parameters(), cfg)"
LAYOUT = "    model = net = net.to(device, memory_format=layout)"
MICRO_BATCHES = "        micro_batches = cfg.batch_size // (cfg.micro_batch or cfg.batch_size)"

WRONG = {
    "all parts kept, one used": Answer(
        todo=33,
        edits={
            KEPT: "        net = nn.ModuleList(pipelines.Stage(each, autocast) for each in parts)",
            STAGES: STAGES.replace(
                "own, at in zip(net, numbers)", "own, at in [(net[run.rank], run.rank)]"
            ),
            NUMBERS: "",
        },
        why="Nothing is saved: each rank keeps the whole network.",
        said=r"rank 0's optimizer holds all [\d,]+ numbers of the network",
    ),
    "the optimizer of the whole network": Answer(
        todo=33,
        edits={
            KEPT: f"        whole = net\n{KEPT}",
            OPTIMIZER: "    held = whole if schedule else net\n"
            "    optimizer = optimizers.create(held.parameters(), cfg)",
        },
        why="It holds weights that get no gradients on this rank, and would hold their means.",
        said=r"rank 0's optimizer holds all [\d,]+ numbers of the network",
    ),
    "gradients added up, not averaged": Answer(
        todo=33,
        edits={
            ORDER: "        schedule = ScheduleGPipe(\n"
            "            stages[0], micro_batches, loss_fn=criterion, scale_grads=False\n        )"
        },
        why="AdamW divides by their length, so the loss says nothing.",
        said=r"gradients are 4 times those of one process",
    ),
    "a loss that is a sum": Answer(
        todo=33,
        edits={
            ORDER: "        schedule = ScheduleGPipe(\n"
            "            stages[0], micro_batches, "
            "loss_fn=lambda *both: micro_batches * criterion(*both)\n        )"
        },
        why="Both the loss and the gradients are four times too large.",
        said=r"gradients are 4 times those of one process",
    ),
    "one micro-batch": Answer(
        todo=33,
        edits={MICRO_BATCHES: "        micro_batches = 1"},
        why="Ranks take turns: each waits for all of the others.",
        said=r"worked on 1 micro-batches, and 4 are due",
    ),
    "labels of another order": Answer(
        todo=33,
        edits={
            ORDER: "        schedule = ScheduleGPipe(\n"
            "            stages[0], micro_batches, loss_fn=lambda scores, labels: "
            "criterion(scores, labels.flip(0))\n        )"
        },
        why="Each image is taught its neighbour's class.",
        said=r"the first loss is [\d.]+, and [\d.]+ in one process",
    ),
    "1F1B with two stages where zero bubble is due": Answer(
        todo=34,
        edits={ORDER: ORDER.replace("cfg.pipeline", '"interleaved"')},
        why="Stages are right, and gaps stay as they were.",
        said=r"in the order of interleaved, and the config asks for zero_bubble",
    ),
    "one stage a rank, always": Answer(
        todo=34,
        edits={
            NUMBERS: "",
            ORDER: ORDER.replace("cfg.pipeline", '"1f1b"'),
        },
        why="Two parts instead of four.",
        said=r"rank 0 worked as stages \[0\], and zero_bubble of 2 ranks has \[0, 2\] there, of 4",
    ),
    "all forward first": Answer(
        todo=34,
        edits={
            ORDER: "        from torch.distributed import pipelining\n\n"
            "        schedule = pipelining.ScheduleLoopedBFS(stages, micro_batches, criterion)"
        },
        why="PyTorch has more orders: GPipe's with two stages a rank is none of the config's.",
        said=r"rank 0 did .* as its pass number 3, and zero_bubble has .* there",
    ),
}

RIGHT = {
    "lets go of the other parts": Answer(
        todo=33,
        edits={
            KEPT: "        own = [pipelines.Stage(parts[number], autocast) for number in numbers]\n"
            "        del parts\n        net = nn.ModuleList(own)",
        },
        why="The other parts are gone before anything is moved to the device.",
    ),
    "a plain list of stages": Answer(
        todo=34,
        edits={
            ORDER: "        from torch.distributed import pipelining\n\n"
            "        if cfg.pipeline == 'zero_bubble':\n"
            "            kind = pipelining.ScheduleInterleavedZeroBubble\n"
            "            schedule = kind(stages, micro_batches, loss_fn=criterion)\n"
            "        else:\n"
            "            schedule = pipelines.create_schedule(\n"
            "                cfg.pipeline, stages, micro_batches, criterion)"
        },
        why="PyTorch's own class, by its own name.",
    ),
}
