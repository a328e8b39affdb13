"""TODOs 29 to 32: who sees, keeps and adds up what of a network that ranks share out."""

from answers.lines import Answer

PLACE = "        group, copy, how_many = copies.get_group(), copies.get_local_rank(), copies.size()"
PUT = "            block.mlp = SharedMlp(block.mlp, mates)"
MADE = "        self.fc1.weight = share(self.fc1.weight, ranks, dim=0)"
BIASES = "        self.fc1.bias = share(self.fc1.bias, ranks, dim=0)"
TAKEN = "        self.fc2.weight = share(self.fc2.weight, ranks, dim=1)"
ONCE = """\
        if ranks.get_local_rank() > 0:
            self.fc2.bias = None"""
LEAVING = "        return Exit.apply(result, self.group)"
SUM = "        distributed.all_reduce(result, group=group)"
BACK = "        distributed.all_reduce(gradient, group=ctx.group)"
UNITS = "            fully_shard(unit, mesh=copies)"
ROOT = "        fully_shard(net, mesh=copies)"

WRONG = {
    "mates with images of their own": Answer(
        todo=29,
        edits={PLACE: PLACE.replace("copies.get_local_rank(), copies.size()", "run.rank, 4")},
        why="Results of different images are added up.",
        said=r"each rank saw 2 images of a batch of 8, and 4 are due",
    ),
    "the place among mates": Answer(
        todo=29,
        edits={
            PLACE: "        group = copies.get_group()\n"
            "        copy, how_many = mates.get_local_rank(), mates.size()"
        },
        why="Of the two meshes it is the other one.",
        said=r"ranks of one network saw different images",
    ),
    "averages over all ranks": Answer(
        todo=29,
        edits={PLACE: PLACE.replace("copies.get_group()", "None")},
        why="Once ranks keep different parts, they are mixed.",
        said=r"DDP expects same model across all ranks|DDP averages over ranks \[0, 1, 2, 3\]",
    ),
    "all copies see the same": Answer(
        todo=29,
        edits={PLACE: PLACE.replace("copies.get_local_rank()", "0")},
        why="What the second copy computes, the first one knows.",
        said=r"all copies saw the same images",
    ),
    "shares out no MLP": Answer(
        todo=30,
        edits={PUT: "            pass"},
        why="Everybody computes everything.",
        said=r"rank 0 has all [\d,]+ numbers: no MLP was shared out",
    ),
    "adds the bias on each rank": Answer(
        todo=30,
        edits={ONCE: ""},
        why="The sum has it twice; it starts at zero, so that the first loss is right.",
        said=r"rank 1 adds the second layers' biases as well",
    ),
    "takes channels that another rank makes": Answer(
        todo=30,
        edits={
            TAKEN: "        self.fc2.weight = nn.Parameter(\n"
            "            self.fc2.weight.detach().chunk(2, 1)[1 - ranks.get_local_rank()].clone())"
        },
        why="Shapes are right, and each channel meets another one's weights.",
        said=r"the hidden channels that a rank makes must be those that it takes",
    ),
    "forgets the sum": Answer(
        todo=30,
        edits={SUM: "        pass"},
        why="Each rank goes on with its part.",
        said=r"0 sums over ranks in the forward pass, and 4 MLPs",
    ),
    "a mean instead of the sum": Answer(
        todo=30,
        edits={SUM: f"{SUM}\n        result /= 2"},
        why="Every MLP's result is halved.",
        said=r"each result the sum of all",
    ),
    "cuts the wrong way": Answer(
        todo=30,
        edits={TAKEN: TAKEN.replace("dim=1", "dim=0")},
        why="Shapes do not fit.",
        said=r"mat1 and mat2 shapes cannot be multiplied",
    ),
    "gradients of a part": Answer(
        todo=31,
        edits={BACK: "        pass"},
        why="What lies before learns from a half, and the loss falls all the same.",
        said=r"0 sums over ranks in backward, and 4 MLPs.* The loss hardly shows it",
    ),
    "gradients averaged": Answer(
        todo=31,
        edits={BACK: f"{BACK}\n        gradient /= 2"},
        why="Half of what they are.",
        said=r"gradients are added up, and not averaged",
    ),
    "sums at both ends": Answer(
        todo=31,
        edits={
            "    def backward(ctx, gradient):\n        return gradient, None": (
                "    def backward(ctx, gradient):\n        gradient = gradient.clone()\n"
                "        distributed.all_reduce(gradient)\n        return gradient, None"
            )
        },
        why="Gradients of all MLPs are doubled.",
        said=r"8 sums over ranks in backward, and 4 MLPs",
    ),
    "shards nothing": Answer(
        todo=32,
        edits={"    if cfg.shard and how_many > 1:": "    if False:"},
        why="Copies are averaged by DDP, and each keeps all that it has.",
        said=r"weights are in no shard",
    ),
    "leaves the root whole": Answer(
        todo=32,
        edits={ROOT: ""},
        why="What no block has, copies do not average.",
        said=r"weights are in no shard",
    ),
}

RIGHT = {
    "slices by hand": Answer(
        todo=30,
        edits={
            TAKEN: "        size = self.fc2.weight.shape[1] // ranks.size()\n"
            "        first = size * ranks.get_local_rank()\n"
            "        own = self.fc2.weight.detach()[:, first : first + size].clone()\n"
            "        self.fc2.weight = nn.Parameter(own)"
        },
        why="The same columns.",
    ),
    "every second channel": Answer(
        todo=30,
        edits={
            f"{MADE}\n{BIASES}\n{TAKEN}": (
                "        mine = slice(ranks.get_local_rank(), None, ranks.size())\n"
                "        for layer, at in ((self.fc1, (mine,)), (self.fc2, (slice(None), mine))):\n"
                "            layer.weight = nn.Parameter(layer.weight.detach()[at].clone())\n"
                "        self.fc1.bias = nn.Parameter(self.fc1.bias.detach()[mine].clone())"
            )
        },
        why="Any channels will do, as long as who makes them takes them.",
    ),
    "weights gathered again in backward": Answer(
        todo=32,
        edits={UNITS: "            fully_shard(unit, mesh=copies, reshard_after_forward=True)"},
        why="What it does anyway.",
    ),
}
