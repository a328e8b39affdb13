"""TODO 14 and 15: groups of weights, and the search for a learning rate."""

from answers.lines import Answer

FILTERS = "    filters = [weight for weight in model.parameters() if weight.ndim > 1]"
VECTORS = "    vectors = [weight for weight in model.parameters() if weight.ndim <= 1]"
DECAY = "    decay = cfg.weight_decay if cfg.norm_decay else 0.0"
GROUPS = '    weights = [{"params": filters}, {"params": vectors, "weight_decay": decay}]'
LAST = "        last = cfg.epochs * cfg.steps - 1"
SEARCH = "        search = LambdaLR(optimizer, lambda update: 1e4 ** (update / last - 1))"
HOOK = "        optimizer.register_step_post_hook(lambda *_: search.step())"
LEFT_OUT = {"precision": "fp16"}  # a gradient overflows there, and a step is left out

UPDATED = "            scaler.update()\n"
WRONG = {
    "no decay for the filters": Answer(
        todo=14,
        edits={
            GROUPS: GROUPS.replace("filters", "others")
            .replace("vectors", "filters")
            .replace("others", "vectors")
        },
        why="The groups are swapped: all that is left is decay for vectors.",
        said=r"^weight decay: the optimizer has .*filters=0",
    ),
    "only biases spared": Answer(
        todo=14,
        edits={
            FILTERS: "    filters = [w for n, w in net.named_parameters() if 'bias' not in n]",
            VECTORS: "    vectors = [w for n, w in net.named_parameters() if 'bias' in n]",
        },
        why="BatchNorm's weights decay, for they are called weight.",
        said=r"^weight decay: the optimizer has .*vectors=0 and",
    ),
    "spared whatever the config says": Answer(
        todo=14,
        edits={DECAY: "    decay = 0.0"},
        why="Other rungs are trained otherwise, too.",
        config={"norm_decay": True},
        said=r"the config asks weight_decay=5e-05",
    ),
    "leaves the vectors out": Answer(
        todo=14,
        edits={GROUPS: '    weights = [{"params": filters}]'},
        why="BatchNorm's weights and the biases are never updated.",
        said=r"the optimizer updates [\d,]+ numbers",
    ),
    "leaves the filters out": Answer(
        todo=14,
        edits={GROUPS: '    weights = [{"params": vectors, "weight_decay": decay}]'},
        why="Only BatchNorm and the biases are trained.",
        said=r"the optimizer updates [\d,]+ numbers",
    ),
    "validates as it trains": Answer(
        todo=14,
        edits={"    model.eval()\n": ""},
        why="BatchNorm normalises each validation batch by its own statistics.",
        said=r"^validation normalised by batch statistics",
    ),
    "trains as it validates": Answer(
        todo=14,
        edits={"        model.train()\n": "        model.eval()\n"},
        why="BatchNorm normalises by running statistics, which then never change.",
        said=r"^training normalised by running statistics",
    ),
    "a step instead of a factor": Answer(
        todo=15,
        edits={SEARCH: SEARCH.replace("1e4 ** (update / last - 1)", "max(update / last, 1e-4)")},
        why="Grows by the same amount: most updates are at high rates.",
        said=r"^update 1 had the learning rate .*is due",
    ),
    "never steps it": Answer(
        todo=15,
        edits={HOOK: "        pass"},
        why="The scheduler is made, and never steps.",
        said=r"^update 1 had the learning rate",
    ),
    "from the top": Answer(
        todo=15,
        edits={SEARCH: SEARCH.replace("(update / last - 1)", "(-update / last)")},
        why="Falls instead of growing: the network is ruined at the first update.",
        said=r"^update 0 had the learning rate",
    ),
    "ends before the top": Answer(
        todo=15,
        edits={LAST: "        last = cfg.epochs * cfg.steps"},
        why="One factor too few: the last update is below cfg.lr.",
        said=r"^update 0 had|^update 1 had",
    ),
    "counts steps that were left out": Answer(
        todo=15,
        edits={
            HOOK: "        pass",
            UPDATED: f"{UPDATED}            if cfg.schedule == 'find':\n"
            "                search.step()\n",
        },
        why="The learning rate grows where the scaler skipped the update.",
        config=LEFT_OUT,
        said=r"had the learning rate",
    ),
}

RIGHT = {
    "by the modules' kind": Answer(
        todo=14,
        edits={
            FILTERS: "    kept = (nn.Conv2d, nn.Linear)\n"
            "    filters = [m.weight for m in net.modules() if isinstance(m, kept)]",
            VECTORS: "    known = {id(w) for w in filters}\n"
            "    vectors = [w for w in net.parameters() if id(w) not in known]",
        },
        why="Asks for the layers whose weights decay.",
    ),
    "ExponentialLR": Answer(
        todo=15,
        edits={
            SEARCH: "        for group in optimizer.param_groups:\n"
            "            group['lr'] = cfg.lr / 1e4\n"
            "        kind = torch.optim.lr_scheduler.ExponentialLR\n"
            "        search = kind(optimizer, 1e4 ** (1 / last))"
        },
        why="The same factor again and again.",
    ),
    "by hand": Answer(
        todo=15,
        edits={
            SEARCH: "        rates = [cfg.lr * 1e4 ** (n / last - 1) for n in range(last + 2)]\n"
            "        def search(*_):\n"
            "            rate = rates.pop(0)\n"
            "            for group in optimizer.param_groups:\n"
            "                group['lr'] = rate\n"
            "        search()",
            HOOK: "        optimizer.register_step_post_hook(search)",
        },
        why="A list of rates, and no scheduler.",
    ),
}
