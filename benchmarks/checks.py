"""How long does a check take? All of them, on the solution, one after another.

    python benchmarks/checks.py

Prints a JSON line for each, and one for the median. Runs lie in a temporary folder; as in one
`course check`, checks that look at the same runs share them.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from contextlib import redirect_stdout
from io import StringIO
from statistics import median

from course import check, days, rung, wait
from course.jobs.launch import launch

SCRIPT = "solutions/train.py"


def main() -> None:
    """Print what each check takes, from the second launch on, as a learner has them."""
    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["COURSE_RUNS"] = folder
        with redirect_stdout(StringIO()):
            wait(launch(SCRIPT, rung("baseline", quick=True, budget_s=1.0)))
        for name in days.checks():
            began = time.perf_counter()
            with redirect_stdout(StringIO()):
                done = check(name, script=SCRIPT)
            seconds.append(time.perf_counter() - began)
            verdicts = {part.part: part.verdict for part in done.parts}
            print(json.dumps({"check": name, "s": round(seconds[-1], 1), **verdicts}), flush=True)
    print(json.dumps({"median_s": round(median(seconds), 1), "longest_s": round(max(seconds), 1)}))


if __name__ == "__main__":
    main()
