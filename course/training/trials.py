"""A trial's side of a search: after each epoch it reports, and is told whether to go on.

What trials of a search know of each other lies in one file, Optuna's journal: it needs no server,
only a disk that all of them see.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optuna import Study
    from optuna.pruners import BasePruner
    from optuna.storages import JournalStorage

FOLDER = "studies"  # beside the runs: a folder for each search
ABOUT, JOURNAL = "study.json", "journal.log"  # what is searched, and what is known by now
VALUE = "val_top1"  # what is to be large
PRUNED = "pruned"  # how the error of a run begins that was ended for what it had reported
PRUNERS = ("none", "median", "hyperband")
COMPLETE_FIRST = 4  # so many trials are trained to their end before the median prunes any
EARLIEST = 2  # epoch after which it does: the first one tells little


def storage(folder: Path) -> JournalStorage:
    """What reads and writes the journal in a study's folder."""
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return JournalStorage(JournalFileBackend(str(folder / JOURNAL)))


def opened(folder: Path, journal: JournalStorage | None = None) -> Study:
    """The study whose journal lies in a folder; an empty one, where there is none yet."""
    import optuna

    about = json.loads((folder / ABOUT).read_text())
    return optuna.create_study(
        storage=journal or storage(folder),
        study_name=folder.name,
        direction="maximize",
        load_if_exists=True,
        pruner=pruner(about["pruner"], about["config"]["epochs"]),
    )


def pruner(name: str, epochs: int) -> BasePruner:
    """What decides that a trial is not worth going on: one of PRUNERS."""
    from optuna import pruners

    if name == "median":
        return pruners.MedianPruner(n_startup_trials=COMPLETE_FIRST, n_warmup_steps=EARLIEST)
    if name == "hyperband":
        return pruners.HyperbandPruner(min_resource=1, max_resource=epochs, reduction_factor=3)
    return pruners.NopPruner()


def report(runs_root: Path, asked: dict[str, Any], epoch: int, value: float) -> str:
    """Write down what an epoch brought.

    Args:
        runs_root: in which the trial's run lies.
        asked: of the run: the study's name, and the trial's number.
        epoch: from 1.

    Returns:
        Why the trial ends here; "": it goes on.
    """
    folder, number = runs_root / FOLDER / asked["study"], asked["number"]
    journal = storage(folder)
    known = journal.get_study_id_from_name(folder.name)
    this = journal.get_trial_id_from_study_id_trial_number(known, number)
    journal.set_trial_intermediate_value(this, epoch, value)
    study = opened(folder, journal)
    if not study.pruner.prune(study, journal.get_trial(this)):
        return ""
    others = [
        each.intermediate_values[epoch]
        for each in study.get_trials(deepcopy=False)
        if epoch in each.intermediate_values and each.number != number
    ]
    more = sum(each > value for each in others)
    return f"{VALUE} was {value:.3f}, and {more} of {len(others)} others had more by then"
