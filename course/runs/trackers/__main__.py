"""The process that writes for a tool: `python -m course.runs.trackers TOOL FOLDER`.

It reads the folders of the runs, one a line. Each of these tools keeps threads, files and variables
for as long as its process lasts: so it is none in which somebody works.
"""

import sys
from pathlib import Path

from course.runs.run import Run
from course.runs.trackers import tensorboard, trackio, wandb
from course.runs.trackers.content import content

WRITERS = {"tensorboard": tensorboard.write, "trackio": trackio.write, "wandb": wandb.write}

if __name__ == "__main__":
    tool, folder = sys.argv[1:]
    for line in sys.stdin.read().splitlines():
        WRITERS[tool](Path(folder), content(Run(Path(line))))
