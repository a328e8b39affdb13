"""Enter what the course ships, on this machine, for its board.

    python -m course.race.record BOARD [--tracks gpu,cpu]

Entries of track gpu run one after another on the GPU; those of track cpu at the same time, each
on two cores of its own. So the times of either are not those of a machine that does nothing else:
what they share is its memory, and two cores of sixteen are called so on the board.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from course.race.board import SHIPPED_ENTRIES
from course.runs.run import runs_root

BY = "the course"
GPU_CORES, CPU_CORES = 6, 2


def main(arguments: Sequence[str] | None = None) -> None:
    """Start every entry where it belongs, wait for all, and say how each ended."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("board", type=Path)
    asked.add_argument("--tracks", default="gpu,cpu")
    asked.add_argument("--entries", default=",".join(SHIPPED_ENTRIES))
    given = asked.parse_args(arguments)
    names, tracks = given.entries.split(","), given.tracks.split(",")
    cores = sorted(os.sched_getaffinity(0))
    lines = []
    if "gpu" in tracks:
        own = GPU_CORES if "cpu" in tracks else len(cores)
        lines.append((["gpu"], names, cores[:own]))
        cores = cores[own:]
    if "cpu" in tracks:
        for place, name in enumerate(names):
            own = cores[place * CPU_CORES : (place + 1) * CPU_CORES]
            lines.append((["cpu"], [name], own or sorted(os.sched_getaffinity(0))))
    lines += [([track], names, cores) for track in tracks if track not in ("gpu", "cpu")]
    threads = [
        threading.Thread(target=_enter, args=(given.board, *line), daemon=True) for line in lines
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _enter(board: Path, tracks: Sequence[str], names: Sequence[str], cores: Sequence[int]) -> None:
    """Enter these, one after another, on these cores, beside whatever else is being entered."""
    for track in tracks:
        for name in names:
            with tempfile.TemporaryDirectory() as aside:  # locks of its own: it waits for nobody
                own = {"TMPDIR": aside, "COURSE_WARM": "0", "OMP_NUM_THREADS": str(len(cores))}
                own["COURSE_RUNS"] = str(runs_root() / f"{track}-{name}")
                subprocess.run(
                    [
                        *(sys.executable, "-P", "-m", "course", "race", track, "--entry", name),
                        *("--board", str(board), "--by", BY),
                    ],
                    env=os.environ | own,
                    preexec_fn=lambda: os.sched_setaffinity(0, cores),
                )


if __name__ == "__main__":
    main()
