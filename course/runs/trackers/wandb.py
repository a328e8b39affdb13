"""To Weights & Biases, offline: folders that `wandb sync` sends off, if somebody wants that."""

from __future__ import annotations

import shutil
from pathlib import Path

from course.runs.trackers.content import Content

PROJECT = "course"


def write(folder: Path, content: Content) -> None:
    """Write an offline run, in place of one of its name; nothing is sent to anybody."""
    import wandb

    for known in folder.glob(f"wandb/offline-run-*-{content.name}"):
        shutil.rmtree(known)
    run = wandb.init(
        project=PROJECT,
        id=content.name,
        name=content.name,
        dir=folder,
        config=content.config,
        tags=[tag[:64] for tag in content.tags],  # as long as it takes them
        mode="offline",
        settings=_settings(content.began_s),
    )
    for row in content.rows:
        run.log(row.values, step=row.step)
    run.summary.update(content.summary)
    run.finish()


def _settings(began_s: float) -> object:
    """Nothing is written of the machine that exports: the run was perhaps made on another."""
    import wandb

    return wandb.Settings(
        console="off",
        disable_code=True,
        disable_git=True,
        silent=True,
        x_disable_machine_info=True,
        x_disable_meta=True,
        x_disable_stats=True,
        x_disable_viewer=True,
        x_save_requirements=False,
        x_start_time=began_s,
    )
