"""TODOs 17 to 20: a batch in parts, silent ranks, activations computed again or sent away."""

from answers.lines import Answer

SPLIT = "            micro_batches = [*zip(images.split(size), labels.split(size))]"
COUNTED = "                    loss = loss * len(targets) / len(labels)"
ADDED = "                step_loss += loss.detach()"
SILENT = """\
                if run.world_size > 1 and number < len(micro_batches):
                    silent = model.no_sync()"""
BACKWARD = "                loss.backward()"
HOW = '        how = {"use_reentrant": False}'
CHECKPOINT = "        block.forward = partial(checkpoint, block.forward, **how)"
EVERY = '    chosen = {"every": models.blocks(net), "second": models.blocks(net)[::2],'
NAMED = "    for block in chosen.get(cfg.checkpointing, []):"
AWAY = '    kept = save_on_cpu(pin_memory=device.type == "cuda") if cfg.offload else nullcontext()'

WRONG = {
    "a mean of means over micro-batches": Answer(
        todo=17,
        edits={COUNTED: "                    loss = loss / len(micro_batches)"},
        why="The last micro-batch is smaller, and its images count more than the others'.",
        said=r"a micro-batch of 1 in 10 images counts 0.25 in all, and 0.1 is its share",
    ),
    "adds the means up": Answer(
        todo=17,
        edits={COUNTED: "                    pass"},
        why="Four micro-batches, so gradients are four times as large.",
        said=r"count 4 in all, so the gradients are 4 times",
    ),
    "takes all micro-batches for full ones": Answer(
        todo=17,
        edits={COUNTED: "                    loss = loss * cfg.micro_batch / len(labels)"},
        why="The last one has one image, and counts as three.",
        said=r"count 1.2 in all",
    ),
    "leaves out the rest": Answer(
        todo=17,
        edits={SPLIT: f"{SPLIT}[: len(images) // size]"},
        why="What is left over when the batch is divided is never seen.",
        said=r"the micro-batches of a step have 9 images, and its batch 10",
    ),
    "so many micro-batches, not so many images": Answer(
        todo=17,
        edits={SPLIT: "            micro_batches = [*zip(images.chunk(size), labels.chunk(size))]"},
        why="chunk takes how many parts there are to be, split how large each is.",
        said=r"4 images went through the network at once, and cfg.micro_batch is 3",
    ),
    "updates after each micro-batch": Answer(
        todo=17,
        edits={
            ADDED: f"{ADDED}\n                optimizer.step()\n"
            "                optimizer.zero_grad()"
        },
        why="Four small updates are not one large one.",
        said=r"the optimizer stepped \d times in a step",
    ),
    "forgets the gradients before": Answer(
        todo=17,
        edits={BACKWARD: f"                optimizer.zero_grad()\n{BACKWARD}"},
        why="Only the last micro-batch's gradients reach the update.",
        said=r"loss differs by",
    ),
    "never speaks": Answer(
        todo=18,
        edits={SILENT: SILENT.replace(" and number < len(micro_batches)", "")},
        why="Each rank goes its own way.",
        said=r"no gradient was sent at all",
    ),
    "silent at the last alone": Answer(
        todo=18,
        edits={SILENT: SILENT.replace("<", "==")},
        why="All but the last are sent, and the last one's gradients stay a rank's own.",
        said=r"in the first step, .* 3 were sent for 2 micro-batches|have different weights",
    ),
    "silent around backward": Answer(
        todo=18,
        edits={
            SILENT: "                last = number == len(micro_batches)",
            BACKWARD: "                with nullcontext() if last else model.no_sync():\n"
            f"    {BACKWARD}",
        },
        why="DDP decides in forward whether the backward to come will send.",
        said=r"in the first step, whose gradients go as one message, \d were sent",
    ),
    "every second block for every": Answer(
        todo=19,
        edits={EVERY: EVERY.replace('net), "second"', 'net)[::2], "second"')},
        why="Half of the blocks keep all of it.",
        said=r"forward left as much for backward",
    ),
    "the whole network in one piece": Answer(
        todo=19,
        edits={
            NAMED: "    for block in [net] if cfg.checkpointing else []:",
        },
        why="In backward all activations are back at once.",
        said=r"the first convolution was computed again",
    ),
    "checkpoints whatever the config says": Answer(
        todo=19,
        edits={NAMED: '    for block in chosen[cfg.checkpointing or "every"]:'},
        why="Then nothing is compared with it.",
        both=True,
        said=r"as before \(100% of it\)",
    ),
    "calls the block from its own forward": Answer(
        todo=19,
        edits={CHECKPOINT: CHECKPOINT.replace("block.forward, **how", "block, **how")},
        why="The block's forward is the checkpoint, which calls the block.",
        said=r"RecursionError|recursion",
    ),
    "away whatever the config says": Answer(
        todo=20,
        edits={AWAY: AWAY.replace(" if cfg.offload else nullcontext()", "")},
        why="The step before did so as well.",
        both=True,
        said=r"the step before left nothing there either",
    ),
    "hooks that nobody enters": Answer(
        todo=20,
        edits={AWAY: f"{AWAY}\n    kept = nullcontext()"},
        why="Made, and thrown away.",
        said=r"save_on_cpu is not used",
    ),
}

RIGHT = {
    "micro-batches of nearly one size": Answer(
        todo=17,
        edits={
            SPLIT: "            parts = -(-len(images) // size)\n"
            "            micro_batches = "
            "[*zip(images.tensor_split(parts), labels.tensor_split(parts))]"
        },
        why="3 + 3 + 2 + 2 images, each weighed by its own share.",
    ),
    "a sum over all images": Answer(
        todo=17,
        edits={
            COUNTED: "                    loss = nn.functional.cross_entropy(\n"
            '                        scores, targets, reduction="sum"\n'
            "                    ) / len(labels)"
        },
        why="The sum of all losses, divided once by how many there are.",
    ),
    "asks DDP by its attribute": Answer(
        todo=18,
        edits={
            SILENT: "                if run.world_size > 1:\n"
            "                    model.require_backward_grad_sync = number == len(micro_batches)"
        },
        why="It is what no_sync sets.",
    ),
    "the older checkpoint": Answer(
        todo=19,
        edits={HOW: '        how = {"use_reentrant": True}'},
        why="A custom autograd function instead of hooks; the input of a block needs gradients.",
    ),
    "hooks of one's own": Answer(
        todo=20,
        edits={
            AWAY: "    kept = nullcontext()\n"
            "    if cfg.offload:\n"
            "        kept = torch.autograd.graph.saved_tensors_hooks(\n"
            '            lambda tensor: tensor.to("cpu"), lambda tensor: tensor.to(device)\n'
            "        )"
        },
        why="As save_on_cpu, without pinned memory.",
    ),
}
