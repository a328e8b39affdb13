"""Copy recorded runs: into another machine's tables, or to separate run folders."""

import json
from dataclasses import asdict
from pathlib import Path

from course.runs import rows
from course.runs.run import TRACES, RecordedRun, Run, rank_file, steps_file


def copy_row(run: Run, machine: Path, name: str, **parts: dict) -> Run:
    """Add a recorded run to a machine's tables under a name, with changes to its parts."""
    home = run.folder.parent.parent
    row = rows.read(home / rows.RUNS, run.name) | {"run": name}
    row |= {part: row[part] | values for part, values in parts.items()}
    rows.write(machine / rows.RUNS, row)
    rows.write(machine / rows.STEPS, rows.read(home / rows.STEPS, run.name) | {"run": name})
    return RecordedRun(machine / TRACES / name)


def own_copy(run: Run, folder: Path, **changes: object) -> Run:
    """Write a recorded run as a run folder, with changes to its record."""
    folder.mkdir(parents=True)
    parts = {
        "config.json": asdict(run.requested_config),
        "launch.json": run.launched,
        "record.json": run.record.to_values() | changes,
    }
    parts |= {rank_file(rank["rank"]): rank for rank in run.ranks}
    for name, values in parts.items():
        (folder / name).write_text(json.dumps(values))
    for rank in range(run.launched["gpus"]):
        steps = run.rank_steps(rank)
        steps.to_json(folder / steps_file(rank), orient="records", lines=True, double_precision=15)
    return Run(folder)
