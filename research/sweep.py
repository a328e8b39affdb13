"""The loop of all measurements here: a plan of rows, a time limit, lines of JSON after each row.

python -m research.sweep OUT.jsonl prints a script's output as one JSON object: machine, date,
torch, command and rows. A recorded machine's index.json has it under the name of the measurement.
"""

from __future__ import annotations

import argparse
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

from course.training.recorder import Recorder

Row = dict[str, Any]


def device() -> torch.device:
    """This machine's accelerator, or its CPU."""
    return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")


def sweep(
    out: Path,
    plan: Iterable[Row],
    measure: Callable[..., Row | Iterable[Row]],
    limit_s: float = math.inf,
    longest_s: Callable[..., float] = lambda **row: 0.0,
) -> list[Row]:
    """Measure each row of a plan, and append it to `out` as lines of JSON before the next begins.

    A row that raises is written with the error as "failed", and the next one follows. A row that
    `out` has without "failed" is not measured again: the same call continues after an interruption.

    Args:
        plan: the rows, the most important first.
        measure: takes a row's fields; returns the fields to add, of one line or of several.
        limit_s: a row that may end later is left out; a shorter one may follow.
        longest_s: takes a row's fields; returns how long it takes at most.

    Returns:
        All lines of the file.
    """
    begin, known = time.monotonic(), lines(out)
    origin = {
        "machine": Recorder(None).describe(device())["machine"],
        "date": date.today().isoformat(),
        "torch": torch.__version__,
        "command": f"python -m research.{Path(sys.argv[0]).stem}",
    }
    for row in plan:
        written = json.loads(json.dumps(row)).items()
        if any(written <= line.items() for line in _good(known)):
            continue
        passed_s = time.monotonic() - begin
        if passed_s + longest_s(**row) > limit_s:
            print(f"{passed_s:5.0f} s  no time left for {row}", flush=True)
            continue
        try:
            found = measure(**row)
            found = [found] if isinstance(found, dict) else [*found]
        except Exception as error:  # one row's failure must not end the others
            found = [{"failed": f"{type(error).__name__}: {error}"[:500]}]
        text = "".join(json.dumps(row | each | origin) + "\n" for each in found)
        with out.open("a") as file:
            file.write(text)
        for each in found:
            new = {name: value for name, value in each.items() if name not in row}
            print(f"{time.monotonic() - begin:5.0f} s  {row} -> {new}", flush=True)
        known += map(json.loads, text.splitlines())
        torch.compiler.reset()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return known


def lines(out: Path) -> list[Row]:
    """The lines of a sweep's file; none if there is no such file."""
    return [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []


def _good(known: list[Row]) -> list[Row]:
    return [line for line in known if "failed" not in line]


def command(doc: str, plan: Iterable[Row], measure: Callable[..., Any], **how: Any) -> list[Row]:
    """The command line of a script that measures a plan: OUT.jsonl [--limit SECONDS]."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("out", type=Path, metavar="OUT.jsonl")
    parser.add_argument("--limit", type=float, default=math.inf, help="seconds for all rows")
    parser.add_argument("--only", default="", metavar="TEXT", help="rows that contain this text")
    asked = parser.parse_args()
    plan = [row for row in plan if asked.only in json.dumps(row)]
    return sweep(asked.out, plan, measure, asked.limit, **how)


def as_part(known: list[Row]) -> Row:
    """A sweep's lines as a recorded machine's index has them, those of failures left out."""
    names = ("machine", "date", "torch", "command")
    good = _good(known)
    if not good:
        raise SystemExit("no row was measured: run the script first, and look at what failed")
    rows = [{name: value for name, value in row.items() if name not in names} for row in good]
    return {name: good[-1][name] for name in names} | {"rows": rows}


if __name__ == "__main__":
    print(json.dumps(as_part(lines(Path(sys.argv[1])))))
