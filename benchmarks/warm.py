"""How long from a launch to the first training step? Cold, and forked from a warm server.

    python benchmarks/warm.py --repeat 5

Launches a quick rung on this machine, again and again. The script is the course's solution, with
lines that note when its first step begins (its batch is there) and ends. A line of JSON a case is
printed: seconds from before `launch` to its return, to the beginning and the end of the first
step, and to the first line of steps.jsonl, each with its median. The exit code is 1 where the
first step of a warm run begins later than AIM_S.
"""

import argparse
import io
import json
import os
import statistics
import sys
import tempfile
import time
from contextlib import redirect_stdout
from pathlib import Path

from course.config import rung
from course.jobs import launch, local
from course.jobs.warm import client
from course.runs.run import PROJECT
from course.training.recorder import cpu_name

AIM_S = 2.0
BEGINS = "            images = images.to(device, non_blocking=cfg.non_blocking)\n"
ENDS = '            meter.lap("optimizer", loss=loss)\n'
NOTE = """            if not os.path.exists("{name}"):
                with open("{name}", "w") as file:
                    file.write(str(time.time()))
"""


def script(folder: Path) -> Path:
    """The course's solution, which notes when its first step begins and ends."""
    text = (PROJECT / "solutions" / "train.py").read_text()
    for line, new in (
        (BEGINS, NOTE.format(name="began") + BEGINS),
        (ENDS, ENDS + NOTE.format(name="ended")),
        ("import torch\n", "import os\nimport time\n\nimport torch\n"),
    ):
        if text.count(line) != 1:
            raise ValueError(f"solutions/train.py has changed: it holds {line!r} not once")
        text = text.replace(line, new)
    (folder / "train.py").write_text(text)
    return folder / "train.py"


def measure(path: Path, name: str) -> dict[str, float]:
    """Launch once: seconds until it returns, the first step begins and ends, and is recorded."""
    began = time.time()
    run = launch.launch(path, rung(name, quick=True), rerun=True)
    seconds = {"returned_s": time.time() - began}
    lines = run.folder / "steps.jsonl"
    while not (lines.exists() and lines.stat().st_size):
        if run.record and run.status != "ok":
            raise RuntimeError(launch.explain(run))
        time.sleep(0.002)
    seconds["first_line_s"] = time.time() - began
    for what in ("began", "ended"):
        seconds[f"step_{what}_s"] = float((run.folder / what).read_text()) - began
    launch.wait(run)
    while local.is_alive(run):  # or the next launch would wait for its turn
        time.sleep(0.05)
    return seconds


def is_warm() -> bool:
    """Does a server answer that suits this process?"""
    try:
        with client.connected(client.name()) as server:
            answer = client.ask(server, {"look": True})
            return answer["signature"] == client.signature()
    except (OSError, ValueError):
        return False


def case(how: str, path: Path, name: str, repeat: int) -> dict:
    """Measure one way of starting: all times, and their medians."""
    os.environ["COURSE_WARM"] = "0" if how == "cold" else "1"
    if how == "warm":
        client.start_server()
        while not is_warm():
            time.sleep(0.2)
    measure(path, name)  # the data set is made, files are read into memory
    times = [measure(path, name) for _ in range(repeat)]
    found = {key: [round(each[key], 3) for each in times] for key in times[0]}
    medians = {key: round(statistics.median(each), 3) for key, each in found.items()}
    return {
        "case": how,
        "rung": name,
        "machine": f"{cpu_name()}, {os.cpu_count()} cores",
        "load": round(os.getloadavg()[0], 2),
        "median": medians,
        **found,
    }


def main() -> int:
    """Print a line a case; 1 where a warm start misses its aim."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rung", default="baseline")
    parser.add_argument("--repeat", type=int, default=5)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["COURSE_RUNS"] = f"{folder}/runs"
        path, found = script(Path(folder)), {}
        for how in ("cold", "warm"):
            with redirect_stdout(io.StringIO()):  # what launch and wait tell
                found = case(how, path, asked.rung, asked.repeat)
            print(json.dumps(found), flush=True)
    return int(found["median"]["step_began_s"] > AIM_S)


if __name__ == "__main__":
    sys.exit(main())
