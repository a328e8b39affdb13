"""To Trackio: a file of SQLite, whose dashboard this machine serves."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from course.runs.trackers.content import Content

PROJECT = "course"


def write(folder: Path, content: Content) -> None:
    """Write a run into the folder's data base, in place of one of its name.

    Trackio has read the folder's name, in the variable TRACKIO_DIR, when it was imported. It has
    neither tags nor a summary: those go with the config.
    """
    import trackio

    assert Path(trackio.utils.TRACKIO_DIR) == folder
    with suppress(ValueError):  # there is no such project yet
        for known in trackio.Api().runs(PROJECT):
            if known.name == content.name:
                known.delete()
    config = {**content.config, "tags": ", ".join(content.tags)}
    config |= {f"summary_{name}": value for name, value in content.summary.items()}
    run = trackio.init(
        PROJECT,
        name=content.name,
        config=config,
        embed=False,
        auto_log_gpu=False,
        auto_log_cpu=False,
    )
    for row in content.rows:
        run.log(row.values, step=row.step)
    if not content.rows:  # a run without a step would not be listed
        run.log(content.numbers, step=0)
    trackio.finish()
