"""A search's hook in a trial: it reports each epoch, and ends the trial if it should not continue.

Trials share one file, Optuna's journal. It needs no server, only a disk that all of them can use.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from course import Run
from course.training import Hook, RunEnded

if TYPE_CHECKING:
    from optuna import Study
    from optuna.pruners import BasePruner
    from optuna.storages import JournalStorage

FOLDER = "studies"  # in the folder of all runs: a folder for each search
ABOUT, JOURNAL = "study.json", "journal.log"  # what is searched, and the results so far
VALUE = "val_top1"  # to be maximised
PRUNED = "pruned"  # the first word in the error of a run that was stopped early
PRUNERS = ("none", "median", "asha", "hyperband")
MEDIAN_TRIALS = 4  # complete trials before the median pruner stops any
MEDIAN_EPOCHS = 2  # epochs before it does: the first one contains little information


def storage(folder: Path) -> JournalStorage:
    """Open the journal in a study's folder.

    If the process that wrote last was killed, or the disk was full, the last line may be
    incomplete. The next line would be appended to it, and no one could read the journal again. So
    whoever holds the journal's lock, to write, first removes an incomplete line.
    """
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock

    class RepairingLock(JournalFileSymlinkLock):
        def acquire(self) -> bool:
            acquired = super().acquire()
            try:
                _cut_off_damage(journal)
            except BaseException:
                self.release()
                raise
            return acquired

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    journal = folder / JOURNAL
    lock = RepairingLock(str(journal))
    try:
        return JournalStorage(JournalFileBackend(str(journal), lock))
    except ValueError:  # a line before the last is damaged
        lock.acquire()
        lock.release()
        return JournalStorage(JournalFileBackend(str(journal), lock))


def _cut_off_damage(journal: Path) -> None:
    """Cut off a journal at its first damaged line; complete lines after it are kept in a copy."""
    good = 0
    with journal.open("rb") as file:
        for line in file:
            if not (line.endswith(b"\n") and _is_object(line)):
                break
            good += len(line)
        else:
            return
        rest = line + file.read()
    copied = ""
    if b"\n" in rest:
        copy = journal.with_suffix(".damaged")
        shutil.copyfile(journal, copy)
        copied = f" (all of it is in {copy.name})"
    os.truncate(journal, good)
    print(
        f"{journal}: the last {len(rest)} bytes were damaged by a full disk or a killed process, "
        f"and are removed{copied}; the search continues from the line before",
        file=sys.stderr,
    )


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def open_study(folder: Path, journal: JournalStorage | None = None) -> Study:
    """Open the study in a folder, or create it."""
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
    """Create the rule that stops trials early, one of PRUNERS."""
    from optuna import pruners

    if name == "median":
        return pruners.MedianPruner(n_startup_trials=MEDIAN_TRIALS, n_warmup_steps=MEDIAN_EPOCHS)
    if name == "asha":
        return pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=3)
    if name == "hyperband":
        return pruners.HyperbandPruner(min_resource=1, max_resource=epochs, reduction_factor=3)
    return pruners.NopPruner()


class Pruning(Hook):
    """Reports the accuracy of each epoch to the study, whose pruner may end the run."""

    def epoch(self, number: int, values: Mapping[str, float]) -> None:
        run_folder = self.recorder.folder  # on rank 0
        if run_folder is None or VALUE not in values:
            return
        request, value = Run(run_folder).launched["trial"], values[VALUE]
        folder = run_folder.parent / FOLDER / request["study"]
        journal = storage(folder)
        study_id = journal.get_study_id_from_name(folder.name)
        trial_id = journal.get_trial_id_from_study_id_trial_number(study_id, request["number"])
        journal.set_trial_intermediate_value(trial_id, number, value)
        study = open_study(folder, journal)
        if not study.pruner.prune(study, journal.get_trial(trial_id)):
            return
        others = [
            trial.intermediate_values[number]
            for trial in study.get_trials(deepcopy=False)
            if number in trial.intermediate_values and trial.number != request["number"]
        ]
        better = sum(other > value for other in others)
        raise RunEnded(
            f"{PRUNED} after epoch {number} of {self.recorder.config.epochs}: {VALUE} was "
            f"{value:.3f}, and {better} of {len(others)} others had more by then"
        )
