"""TODO 16: where the compiler is called, and what is done with what it gives back."""

from answers.lines import DDP, Answer

COMPILE = "        model = torch.compile(model, mode=cfg.compile)"
BLOCK = f"    if cfg.compile:\n{COMPILE}\n"
EPOCH = "        model.train()\n"
IN_PLACE = BLOCK.replace("model = torch.compile(model, mode=", "model.compile(mode=")

SCORES = "                scores = model(images)\n"
WRONG = {
    "trains the plain network": Answer(
        todo=16,
        edits={COMPILE: "        compiled = torch.compile(model, mode=cfg.compile)"},
        why="What torch.compile gives back is called nowhere, and so nothing is compiled.",
        said=r"is called, and what it gives back is not: the plain network trains",
    ),
    "compiles what is left aside": Answer(
        todo=16,
        edits={COMPILE: f"{COMPILE}\n        model = net"},
        why="Compiled, and then taken back.",
        said=r"the plain network trains",
    ),
    "compiles in every epoch": Answer(
        todo=16,
        edits={
            BLOCK: "",
            EPOCH: f"{EPOCH}        if cfg.compile:\n"
            "            model = torch.compile(net, mode=cfg.compile)\n",
        },
        why="The graph is found again, so it only costs a look; and DDP is passed by.",
        said=r"lies inside the loop: in 2 epochs",
    ),
    "compiles in every step": Answer(
        todo=16,
        edits={
            BLOCK: "",
            SCORES: "                if cfg.compile:\n"
            "                    model = torch.compile(net, mode=cfg.compile)\n"
            f"{SCORES}",
        },
        why="The same, in each step.",
        said=r"lies inside the loop: in 2 epochs",
    ),
    "forgets in every epoch": Answer(
        todo=16,
        edits={EPOCH: f"{EPOCH}        torch.compiler.reset()\n"},
        why="All graphs are thrown away, and made anew: in a long training, minutes an epoch.",
        said=r"graphs were compiled again: in turn there were 1, 1, 2",
    ),
    "a number that changes": Answer(
        todo=16,
        edits={
            BLOCK: "    net.register_forward_pre_hook(lambda self, x: (x[0] + 0 * self.epoch,))\n"
            f"{BLOCK}",
            EPOCH: f"{EPOCH}        net.epoch = epoch\n",
        },
        why="The compiler took the epoch for constant, as any number of Python.",
        said=r"graphs were compiled again",
    ),
    "a hook more in each step": Answer(
        todo=16,
        edits={
            SCORES: f"                net.layer2.register_forward_hook(lambda *_: None)\n{SCORES}",
        },
        why="Each step makes a graph, until there are eight; from then on nothing is compiled.",
        said=r"graphs were compiled again: in turn there were 2, 3, ",
    ),
    "prints in the network": Answer(
        todo=16,
        edits={BLOCK: f"    net.layer2.register_forward_hook(lambda *_: print(end=''))\n{BLOCK}"},
        why="A print amid the network, left over from a search for a mistake.",
        said=r"^a graph breaks, and Python goes on in between: .*print",
    ),
    "asks for a number": Answer(
        todo=16,
        edits={
            BLOCK: "    def looks(module, inputs, output):\n"
            "        if output.mean().item() > 1e9:\n"
            "            raise ValueError('it explodes')\n"
            f"    net.layer2.register_forward_hook(looks)\n{BLOCK}"
        },
        why="Python must know the number before it can go on.",
        said=r"^a graph breaks",
    ),
    "evaluated as it trains": Answer(
        todo=16,
        edits={"    model.eval()\n": ""},
        why="Compiled or not, BatchNorm normalises by the batch.",
        said=r"^validation normalised by batch statistics",
    ),
    "a mode of one's own": Answer(
        todo=16,
        edits={COMPILE: "        model = torch.compile(model)"},
        why="Right for one rung, and not for the one that asks for another mode.",
        said=r"it compiles in the mode 'default', whatever the config asks",
    ),
    "always compiled": Answer(
        todo=16,
        edits={BLOCK: '    model = torch.compile(model, mode=cfg.compile or "default")\n'},
        why="The rungs before it are compiled, too.",
        said=r'with cfg.compile == "" it compiles as well',
        both=True,
    ),
    "around DDP": Answer(
        todo=16,
        edits={BLOCK: "", DDP: f"{DDP}\n{BLOCK.rstrip()}"},
        why="Dynamo cannot read DDP's own forward: it breaks there, and goes on inside.",
        said=r"is given DDP's wrapper, whose own Python it cannot read",
    ),
    "past DDP": Answer(
        todo=16,
        edits={BLOCK: "", DDP: f"{DDP}\n{BLOCK.rstrip().replace('(model,', '(net,')}"},
        why="On several ranks each trains alone, and on one it is right.",
        said=r"passes DDP by, so that nobody averages gradients",
    ),
}

RIGHT = {
    "in place": Answer(
        todo=16,
        edits={BLOCK: IN_PLACE},
        why="Module.compile: the same, without a wrapper; validation is compiled, too.",
    ),
    "as a decorator": Answer(
        todo=16,
        edits={COMPILE: "        model = torch.compile(mode=cfg.compile)(model)"},
        why="torch.compile without a network gives back what takes one.",
    ),
    "by name, and off where the config says so": Answer(
        todo=16,
        edits={
            BLOCK: '    model = torch.compile(model=model, mode=cfg.compile or "default",\n'
            "                          disable=not cfg.compile)\n"
        },
        why="disable=True gives the network back as it is.",
    ),
    "block by block": Answer(
        todo=16,
        edits={
            COMPILE: "        for layer in (net.layer1, net.layer2, net.layer3, net.layer4):\n"
            "            for block in layer:\n"
            "                block.compile(mode=cfg.compile)"
        },
        why="Regions: several small graphs, which are compiled sooner.",
    ),
}
