"""Tables of a machine's recorded runs: files with one JSON object per line, one line per run.

runs.jsonl       run (its name), config, request (its launch.json), record, ranks, test
steps.jsonl.gz   run, and for each rank the columns of its steps
"""

from __future__ import annotations

import gzip
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from course.runs.files import complete_file

RUNS, STEPS = "runs.jsonl", "steps.jsonl.gz"


def names(table: Path) -> list[str]:
    """Return the names of a table's runs in order; [] if there is no such file."""
    return list(_lines(table, version(table)))


def read(table: Path, run: str) -> dict[str, Any]:
    """Return the row of a run as a new dict, or {}."""
    return json.loads(_lines(table, version(table)).get(run, "{}"))


def write(table: Path, row: dict[str, Any]) -> None:
    """Add a row, or replace the row of the same run, atomically."""
    lines = _lines(table, version(table)) | {row["run"]: json.dumps(row)}
    data = "".join(f"{line}\n" for line in lines.values()).encode()
    with complete_file(table) as file:
        # Without a time in the gzip file, the same rows give the same file.
        file.write(gzip.compress(data, mtime=0) if table.suffix == ".gz" else data)


def version(table: Path) -> tuple[int, ...]:
    """Return a key that changes when a table is written; () if there is no such file."""
    try:
        status = table.stat()
    except FileNotFoundError:
        return ()
    return status.st_ino, status.st_mtime_ns, status.st_size


@lru_cache(maxsize=32)  # two files per machine
def _lines(table: Path, _version: tuple[int, ...]) -> dict[str, str]:
    """Return the lines of a file by the names of their runs."""
    if not table.exists():
        return {}
    data = table.read_bytes()
    text = (gzip.decompress(data) if table.suffix == ".gz" else data).decode()
    return {json.loads(line)["run"]: line for line in text.splitlines()}
