"""TODOs 21 to 28: who keeps what, gathers when, saves how."""

from answers.lines import Answer

UNITS = """\
        for unit in units:
            fully_shard(unit, reshard_after_forward=reshard, **how)"""
ROOT = "        fully_shard(net, **how)"
SHARDED = f"""\
        how = {{"mesh": mesh_of(run, device), "mp_policy": policy}}
{UNITS}
{ROOT}"""
GROUPED = "    units = models.units(net, cfg.unit_blocks)"
OPTIMIZER = "    optimizer = optimizers.create(model.parameters(), cfg)"
RESHARD = '    reshard = cfg.shard != "zero2"'
POLICY = "        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)"
FP32_LOSS = "                    scores = scores.float()"
FORWARD = (
    "        unit[0].set_modules_to_forward_prefetch("
    "[each[0] for each in following[: cfg.prefetch]])"
)
BACKWARD = (
    "        unit[0].set_modules_to_backward_prefetch([each[0] for each in before[: cfg.prefetch]])"
)
CLIP = "                nn.utils.clip_grad_norm_(net.parameters(), cfg.clip)"
WHOLE = "        whole = state_dict.get_model_state_dict(net, options=how)"
OPTIONS = "        how = state_dict.StateDictOptions(full_state_dict=True, cpu_offload=True)"
SAVE = "        dcp.save(training_state(net, optimizer, cfg.epochs), checkpoint_id=run.checkpoint)"
COMPILE = "        block.compile(mode=cfg.compile)"

WRONG = {
    "shards the root only": Answer(
        todo=21,
        edits={UNITS: ""},
        why="One unit: all weights are whole at once in every step.",
        said=r"the forward pass gathered 1 times, .* all weights are whole at once",
    ),
    "shards the blocks only": Answer(
        todo=21,
        edits={ROOT: ""},
        why="What no block has, nobody averages.",
        said=r"\d+ weights are in no shard, and nobody averages their gradients",
    ),
    "the root before its blocks": Answer(
        todo=21,
        edits={SHARDED: SHARDED.replace(f"{UNITS}\n{ROOT}", f"{ROOT}\n{UNITS}")},
        why="The root has taken all weights, and PyTorch refuses to shard them again.",
        said=r"overlapping meshes",
    ),
    "the optimizer comes first": Answer(
        todo=21,
        edits={
            GROUPED: f"{OPTIMIZER}\n{GROUPED}",
            f"{OPTIMIZER}\n    optimizers": "    optimizers",
        },
        why="It holds weights that are in use no more.",
        said=r"the optimizer holds weights from before they were sharded",
    ),
    "DDP whatever the config says": Answer(
        todo=21,
        edits={"    if cfg.shard and run.world_size > 1:": "    if False:"},
        why="Every rank keeps everything.",
        said=r"no weight was gathered in the forward pass",
    ),
    "keeps what it has gathered, always": Answer(
        todo=21,
        edits={RESHARD: "    reshard = False"},
        why="zero3 asked for the contrary.",
        said=r"zero3.* forward is to throw away",
    ),
    "throws it away, always": Answer(
        todo=22,
        edits={RESHARD: "    reshard = cfg.shard is not None"},
        why="zero2 asked for the contrary.",
        said=r"backward gathered \d+ times again",
    ),
    "adds up in bf16": Answer(
        todo=23,
        edits={POLICY: POLICY.replace("float32", "bfloat16")},
        why="Three digits are left of a sum; before PyTorch 2.15 this is what is done unasked.",
        said=r"reduced in bfloat16, not float32: reduce_dtype",
    ),
    "casts nothing": Answer(
        todo=23,
        edits={POLICY: "        policy = MixedPrecisionPolicy(reduce_dtype=torch.float32)"},
        why="Weights travel in fp32, and nobody casts them: autocast is off.",
        said=r"gathered in float32, not bfloat16: param_dtype",
    ),
    "a loss in bf16": Answer(
        todo=23,
        edits={FP32_LOSS: "                    pass"},
        why="The network's scores come in bf16.",
        said=r"the loss was computed in bf16",
    ),
    "prefetches forward alone": Answer(
        todo=24,
        edits={BACKWARD: "        pass"},
        why="In backward PyTorch's own is one unit ahead.",
        said=r"backward: at most 1 units were gathered",
    ),
    "one unit ahead, always": Answer(
        todo=24,
        edits={FORWARD: FORWARD.replace("[: cfg.prefetch]", "[:1]")},
        why="The config asks for two.",
        said=r"forward: at most 2 units were gathered .*, and 3 are due",
    ),
    "backward in the wrong order": Answer(
        todo=24,
        edits={BACKWARD: BACKWARD.replace("before[", "units[at + 1 :][")},
        why="It gathers what backward has done already.",
        said=r"it gathers what it is done with",
    ),
    "clips what the rank has": Answer(
        todo=25,
        edits={
            CLIP: "                own = [each.grad.to_local() for each in net.parameters()]\n"
            "                length = torch.stack([each.norm() for each in own]).norm()\n"
            "                for each in own:\n"
            "                    each.mul_((cfg.clip / length).clamp(max=1))"
        },
        why="Each rank's part is 1 long, so together they are longer.",
        said=r"the first update's gradients, over all ranks, are 1\.4",
    ),
    "clips numbers instead of the length": Answer(
        todo=25,
        edits={CLIP: CLIP.replace("clip_grad_norm_", "clip_grad_value_")},
        why="Each number is at most 1, and there are many.",
        said=r"the first update's gradients, over all ranks, are",
    ),
    "saves its shards": Answer(
        todo=26,
        edits={WHOLE: "        whole = net.state_dict()"},
        why="Rank 0's parts, as DTensors that nobody else can read.",
        said=r"weights.pt holds DTensors, rank 0's shards",
    ),
    "gathers all on every rank": Answer(
        todo=26,
        edits={
            WHOLE: "        whole = {name: each.full_tensor() if hasattr(each, 'full_tensor') "
            "else each\n                 for name, each in net.state_dict().items()}"
        },
        why="For a moment each rank has the whole network.",
        said=r"rank 1, which writes nothing, held \d+% of the network",
    ),
    "whole, and not on the host": Answer(
        todo=26,
        edits={OPTIONS: "        how = state_dict.StateDictOptions(full_state_dict=True)"},
        why="Without cpu_offload all ranks keep what is gathered.",
        said=r"rank 1, which writes nothing, held \d+% of the network",
    ),
    "rank 0 alone writes a checkpoint": Answer(
        todo=27,
        edits={SAVE: "        torch.save(net.state_dict(), run.checkpoint.with_suffix('.pt'))"},
        why="Each rank writes its own weights into one file, and no optimizer's state.",
        said=r"there is no checkpoint: all ranks call",
    ),
    "a checkpoint without the optimizer": Answer(
        todo=27,
        edits={
            SAVE: "        dcp.save({'model_state_dict': net.state_dict(), 'epochs': cfg.epochs},"
            " checkpoint_id=run.checkpoint)"
        },
        why="AdamW would begin anew.",
        said=r"the checkpoint is without the optimizer's state",
    ),
    "a checkpoint without its epoch": Answer(
        todo=27,
        edits={
            SAVE: "        weights, kept = state_dict.get_state_dict(net, optimizer)\n"
            "        dcp.save({'model_state_dict': weights, 'optim_state_dict': kept},"
            " checkpoint_id=run.checkpoint)"
        },
        why="Whoever goes on does not know where.",
        said=r"does not say how many epochs are done",
    ),
    "compiles a wrapper and drops it": Answer(
        todo=28,
        edits={COMPILE: "        torch.compile(block, mode=cfg.compile)"},
        why="What torch.compile gives back is called nowhere.",
        said=r"nothing was compiled",
    ),
}

RIGHT = {
    "units as modules, one a block": Answer(
        todo=21,
        edits={
            UNITS: "        for block in models.blocks(net):\n"
            "            fully_shard(block, reshard_after_forward=reshard, **how)"
        },
        why="With unit_blocks=1 it is the same.",
    ),
    "a mesh that PyTorch makes": Answer(
        todo=21,
        edits={
            SHARDED: SHARDED.replace(
                '{"mesh": mesh_of(run, device), "mp_policy": policy}', '{"mp_policy": policy}'
            )
        },
        why="Without one, all ranks in a row.",
    ),
    "set afterwards": Answer(
        todo=22,
        edits={
            RESHARD: "    reshard = {'zero2': False}.get(cfg.shard, True)",
        },
        why="The same, by a table.",
    ),
    "the root gives fp32 back": Answer(
        todo=23,
        edits={
            ROOT: "        how['mp_policy'] = MixedPrecisionPolicy(\n"
            "            policy.param_dtype, policy.reduce_dtype, output_dtype=torch.float32)\n"
            f"{ROOT}",
            FP32_LOSS: "                    pass",
        },
        why="output_dtype is the policy's own way.",
    ),
    "autocast stays on": Answer(
        todo=23,
        edits={
            "    if cfg.policy:\n        autocast = nullcontext()\n": "",
        },
        why="It finds bf16 weights, and casts nothing; some layers it takes to fp32.",
    ),
    "clips by its two halves": Answer(
        todo=25,
        edits={
            CLIP: "                weights = [*net.parameters()]\n"
            "                length = nn.utils.get_total_norm([each.grad for each in weights])\n"
            "                nn.utils.clip_grads_with_norm_(weights, cfg.clip, length)"
        },
        why="It is what clip_grad_norm_ does.",
    ),
    "gathers weight by weight": Answer(
        todo=26,
        edits={
            WHOLE: "        whole = {}\n"
            "        for name, each in net.state_dict().items():\n"
            "            each = each.full_tensor() if hasattr(each, 'full_tensor') else each\n"
            "            if run.rank == 0:\n"
            "                whole[name] = each.cpu()"
        },
        why="All ranks gather, and rank 0 alone keeps.",
    ),
    "compiles the forward": Answer(
        todo=28,
        edits={COMPILE: "        block.forward = torch.compile(block.forward, mode=cfg.compile)"},
        why="Hooks stay around it.",
    ),
}
