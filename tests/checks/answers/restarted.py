"""TODOs 35 to 37: what is saved and how, what is taken from it, and leaving when asked to."""

from answers.lines import Answer

PARTS = '    parts |= {"scaler": scaler, "schedule": schedule}'
STATE = "                    state = {name: part.state_dict() for name, part in parts.items()}"
STORE = '                    store(state | {"step": step, "random": random}, run.checkpoints, step)'
RANK = "                if run.rank == 0:"
DRAFT = '    draft, final = folder / ".draft", folder / checkpoint.file_name(step)'
RENAME = "    draft.replace(final)"
PRUNE = "    checkpoint.remove_old(folder, kept=2)"
LOAD = "            part.load_state_dict(saved[name])"
TAKE = """\
        for name, part in parts.items():
            part.load_state_dict(saved[name])
        randomness.set_states(saved["random"], device)
        step = saved["step"]"""
RANDOM = '        randomness.set_states(saved["random"], device)\n'
SEEN = "(step - epoch * cfg.steps)"
SKIP = f"        skip(train_batches, {SEEN} * (cfg.batch_size // run.world_size))"
SIGNAL = '    signal.signal(signal.SIGTERM, lambda *_: asked.append("to end"))'
LEAVE = """\
            if ends:
                run.mark_interrupted()
                return"""
FILE = '    with draft.open("wb") as file:'
WRITE = "        torch.save(state, file)"
SYNC = "        file.flush()\n        os.fsync(file.fileno())\n"

WRONG = {
    "every rank saves": Answer(
        todo=35,
        edits={RANK: "                if True:"},
        why="Two processes write into one draft.",
        said=r"every rank saved, into the same file|No such file or directory",
    ),
    "under its final name": Answer(
        todo=35,
        edits={DRAFT: "    draft = final = folder / checkpoint.file_name(step)"},
        why="A reader, or a kill, meanwhile, meets half of it under the final name.",
        said=r"step-000003.pt was written under its final name",
    ),
    "in place, through memory": Answer(
        todo=35,
        edits={
            DRAFT: "    import io\n"
            "    memory = io.BytesIO()\n"
            "    torch.save(state, memory)\n"
            "    draft = final = folder / checkpoint.file_name(step)",
            WRITE: "        file.write(memory.getvalue())",
        },
        why="As before; torch.save itself never learns the name.",
        said=r"step-000003.pt was written under its final name",
    ),
    "renamed before it is on the disk": Answer(
        todo=35,
        edits={SYNC: ""},
        why="The name may be on the disk sooner than what it stands for.",
        said=r"step-000003.pt got its name before the disk had all of it",
    ),
    "keeps one": Answer(
        todo=35,
        edits={PRUNE: PRUNE.replace("2", "1")},
        why="Should it be damaged, there is none before it.",
        said=r"1 checkpoint can be read at the end",
    ),
    "keeps all": Answer(
        todo=35,
        edits={PRUNE: ""},
        why="Each of a large network is gigabytes.",
        said=r"3 checkpoints can be read at the end",
    ),
    "one file, over the one before": Answer(
        todo=36,
        edits={DRAFT: '    draft = final = folder / "last.pt"'},
        why="Killed while it saves, nothing is left.",
        said=r"no whole checkpoint is left: it was written in place",
    ),
    "sees the same images again": Answer(
        todo=36,
        edits={SKIP: "        pass"},
        why="The epoch begins anew, in the middle of it.",
        said=r"step 3 saw other images .* behind the 3 batches",
    ),
    "random numbers begin anew": Answer(
        todo=36,
        edits={RANDOM: ""},
        why="Images are mixed otherwise.",
        said=r"drew other random numbers",
    ),
    "momentum lost": Answer(
        todo=36,
        edits={LOAD: f'            if name != "optimizer":\n    {LOAD}'},
        why="The first updates are smaller, and the loss hardly shows it.",
        said=r"step 3 began with other momentum|step 3 had the learning rate",
    ),
    "the scale begins anew": Answer(
        todo=36,
        edits={PARTS: '    parts |= {"schedule": schedule}'},
        why="The scale has been lowered by an overflow, and may have to be once more.",
        said=r"step 3 scaled the loss by 65536, and \d+ is due",
    ),
    "the schedule begins anew": Answer(
        todo=36,
        edits={PARTS: '    parts |= {"scaler": scaler}'},
        why="The optimizer has the last rate, and the schedule goes on as if at its beginning.",
        said=r"loss differs by|had the learning rate|at the end the weights are not the same",
    ),
    "weights alone": Answer(
        todo=36,
        edits={TAKE: '        net.load_state_dict(saved["model"])\n        step = saved["step"]'},
        why="What many call a checkpoint.",
        said=r"step 3 scaled the loss|had the learning rate",
    ),
    "ignores the signal": Answer(
        todo=37,
        edits={SIGNAL: "    signal.signal(signal.SIGTERM, signal.SIG_IGN)"},
        why="Half a minute later comes the other one, which nobody can ignore.",
        said=r"went on to its last",
    ),
    "notes it, and stays": Answer(
        todo=37,
        edits={LEAVE: ""},
        why="Likewise.",
        said=r"went on to its last",
    ),
    "ends in the handler": Answer(
        todo=37,
        edits={SIGNAL: "    signal.signal(signal.SIGTERM, lambda *_: exit(75))"},
        why="As without a handler: what came after the last checkpoint is lost.",
        said=r"it ended at once, so it went on from step 3",
    ),
}

RIGHT = {
    "through memory": Answer(
        todo=35,
        edits={
            f"{FILE}\n{WRITE}": (
                "    import io\n"
                "    memory = io.BytesIO()\n"
                "    torch.save(state, memory)\n"
                f"{FILE}\n        file.write(memory.getvalue())"
            )
        },
        why="All that is written is there before the file is.",
    ),
    "counts the epoch's steps otherwise": Answer(
        todo=36,
        edits={SKIP: SKIP.replace(SEEN, "step % cfg.steps")},
        why="Of an epoch that is at its end, no batch is asked for.",
    ),
    "two places in turn": Answer(
        todo=36,
        edits={
            RENAME: '    draft.replace(folder / f"{step:03}.ckpt")',
            PRUNE: '    for old in sorted(folder.glob("*.ckpt"))[:-2]:\n        old.unlink()',
        },
        why="Names and the rule of one's own.",
    ),
    "a flag instead of a list": Answer(
        todo=37,
        edits={
            SIGNAL: "    import threading\n"
            "    noted = threading.Event()\n"
            "    signal.signal(signal.SIGTERM, lambda *_: noted.set())",
            "any_rank(asked, device)": "any_rank(noted.is_set(), device)",
        },
        why="The same note.",
    ),
}
