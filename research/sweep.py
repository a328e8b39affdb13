"""Run a measurement: a plan of rows, a time limit, and lines of JSON after each row.

A line has the plan's fields, their names as "plan", the measured fields, and machine, date, torch
and command.

python -m research.sweep OUT.jsonl prints a script's output as one JSON object: machine, date,
torch, command and rows. A recorded machine's index.json has it under the name of the measurement.
"""

from __future__ import annotations

import argparse
import errno
import gc
import json
import math
import sys
import time
from collections.abc import Callable, Iterable
from datetime import date
from pathlib import Path
from typing import Any

import torch

from course.runs.files import write_atomically
from course.training.recorder import Recorder

Row = dict[str, Any]


def device() -> torch.device:
    """Return this machine's accelerator, or its CPU."""
    return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")


def sweep(
    out: Path,
    plan: Iterable[Row],
    measure: Callable[..., Row | Iterable[Row]],
    limit_s: float = math.inf,
    longest_s: Callable[..., float] = lambda **row: 0.0,
) -> list[Row]:
    """Measure each row of a plan, and add it to `out` as lines of JSON before the next begins.

    A row that raises is written with the error as "failed", and the next one follows. A row that
    `out` has without "failed" is not measured again: the same call continues after an interruption.
    A last line that is cut short is dropped.

    Args:
        plan: the rows, the most important first.
        measure: takes a row's fields; returns the fields to add, of one line or of several.
        limit_s: a row that may end later is left out; a shorter one may follow.
        longest_s: takes a row's fields; returns the maximum time that it takes.

    Returns:
        All lines of the file.

    Raises:
        SystemExit: `out` cannot be written, or has rows of a different machine.
    """
    begin = time.monotonic()
    origin = {
        "machine": Recorder(None).describe(device())["machine"],
        "date": date.today().isoformat(),
        "torch": torch.__version__,
        "command": f"python -m research.{Path(sys.argv[0]).stem}",
    }
    known = lines(out)
    if strangers := {line.get("machine") for line in known} - {origin["machine"]}:
        raise SystemExit(
            f"{out} has rows of {', '.join(map(str, strangers))}, but this machine is "
            f"{origin['machine']}: choose another file"
        )
    _write(out, known)  # before the first measurement, or its result could be lost
    for row in plan:
        names, row_json = {"plan": [*row]}, json.loads(json.dumps(row))
        finished = (
            {name: line[name] for name in line.get("plan", [])} for line in _measured(known)
        )
        if row_json in finished:
            continue
        passed_s = time.monotonic() - begin
        if passed_s + longest_s(**row) > limit_s:
            print(f"{passed_s:5.0f} s  no time left for {row}", flush=True)
            continue
        try:
            results = measure(**row)
            results = [results] if isinstance(results, dict) else [*results]
            new = json.loads(json.dumps([row | result | names | origin for result in results]))
        except Exception as error:  # one row's failure must not end the others
            results = [{"failed": f"{type(error).__name__}: {error}"[:500]}]
            new = [row | results[0] | names | origin]
        known += new
        _write(out, known)
        for result in results:
            values = {name: value for name, value in result.items() if name not in row}
            print(f"{time.monotonic() - begin:5.0f} s  {row} -> {values}", flush=True)
        torch.compiler.reset()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return known


def _write(out: Path, known: list[Row]) -> None:
    """Replace the file by one with these lines: a kill or a full disk leaves it as it was.

    Raises:
        SystemExit: it cannot be written.
    """
    try:
        if out.exists() and not out.is_file():  # /dev/null must not be replaced
            raise OSError(errno.EINVAL, "it is not a regular file")
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, "".join(json.dumps(line) + "\n" for line in known))
    except OSError as error:
        raise SystemExit(f"cannot write {out}: {error.strerror}. Choose another file") from None


def lines(out: Path) -> list[Row]:
    """Return the lines of a sweep's file, without a truncated last one; [] without a file.

    Raises:
        SystemExit: a different line is not JSON.
    """
    texts, rows = out.read_text().splitlines() if out.is_file() else [], []
    for number, text in enumerate(texts, 1):
        try:
            rows.append(json.loads(text))
        except ValueError:
            if number < len(texts):
                raise SystemExit(f"{out}, line {number} is not JSON: remove it") from None
    return rows


def _measured(known: list[Row]) -> list[Row]:
    return [line for line in known if "failed" not in line]


def command(
    doc: str, plan: Iterable[Row], measure: Callable[..., Any], **options: Any
) -> list[Row]:
    """Run the command line of a script that measures a plan: OUT.jsonl [--limit SECONDS]."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("out", type=Path, metavar="OUT.jsonl")
    parser.add_argument("--limit", type=float, default=math.inf, help="seconds for all rows")
    parser.add_argument("--only", default="", metavar="TEXT", help="rows that contain this text")
    arguments = parser.parse_args()
    plan = [row for row in plan if arguments.only in json.dumps(row)]
    return sweep(arguments.out, plan, measure, arguments.limit, **options)


def as_part(known: list[Row]) -> Row:
    """Return a sweep's lines as a recorded machine's index stores them, without failed ones."""
    names = ("machine", "date", "torch", "command")
    excluded = {*names, "plan"}
    good = _measured(known)
    if not good:
        raise SystemExit("no row was measured: run the script first and see which rows failed")
    rows = [{name: value for name, value in row.items() if name not in excluded} for row in good]
    return {name: good[-1][name] for name in names} | {"rows": rows}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Print a script's output as one JSON object.")
    parser.add_argument("out", type=Path, metavar="OUT.jsonl")
    print(json.dumps(as_part(lines(parser.parse_args().out))))
