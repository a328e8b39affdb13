"""What the course creates, no one else can write, whatever the umask is."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from job_helpers import SHORT, steps_script

from course.jobs.batch_script import STAND_IN
from course.runs.run import PROJECT

# It creates one of each kind: a job of two ranks, a submission to Slurm, a data set, progress,
# an exercise's backup, an entry of a race.
CREATE = """
import sys
from dataclasses import replace
from pathlib import Path
from course import Run, launch, progress
from course.checks import exercise_files, exercises, shared_progress
from course.config import from_dict
from course.data import default_set
from course.data.default_set import Recipe
from course.jobs import launch as jobs, sites
from course.jobs.batch_script import submit_job
from conftest import stop_runners
from race import board
from race.entries import Entry

place = Path(sys.argv[1])
try:
    run = launch(sys.argv[2], from_dict({config}), gpus=2).wait()
finally:
    stop_runners()
jobs.launch(sys.argv[2], run.requested_config, gpus=2, against=run, rerun=True).cancel()
submit_job(place / "submitted", {{"gpus": 1}}, replace(sites.get("local"), executor="slurm"))
default_set.ensure(place / "data", Recipe(train_per_class=1, val_per_class=1))
shared_progress.save_check("device", {{"correct": "yes"}})
exercises.EXERCISES = place / "exercises"
exercises.EXERCISES.mkdir()
(exercises.EXERCISES / "train.py").write_text("my edits\\n")
exercise_files.restore(), exercise_files.reset()
shared = place / "board"
shared.mkdir()
shared.chmod(0o1777)
draft = board.begin(shared, "quick", "x = 1")
board.post(draft, Entry.new("quick", "one", "me", "x = 1", {{}}, 1))
"""


@pytest.mark.slow
@pytest.mark.parametrize("umask", [0o002, 0o000, 0o077], ids=oct)
def test_no_one_else_can_write_what_is_created(tmp_path: Path, umask: int) -> None:
    """Nor read it, if the umask forbids that: but for a shared board, where it decides nothing."""
    place, temporary, programs = (tmp_path / name for name in ("place", "tmp", "bin"))
    for folder in (place, temporary, programs):
        folder.mkdir()
    for name in ("sbatch", "srun"):
        (programs / name).write_text(STAND_IN)
        (programs / name).chmod(0o755)
    taken = temporary / f"make-training-fast-{os.getuid()}"
    taken.write_text("")  # as if a classmate had created it: a launch works nevertheless
    env = os.environ | {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "TMPDIR": str(temporary),
        "HOME": str(place),
        "COURSE_RUNS": str(place / "runs"),
        "PYTHONPATH": str(PROJECT),
    }
    script = steps_script(tmp_path, inside="torch.save(number, 'mine.pt')")
    code = CREATE.format(config=vars(SHORT))
    command = [sys.executable, "-c", code, str(place), str(script)]
    done = subprocess.run(command, env=env, cwd="/", umask=umask, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    created = [path for top in (place, temporary) for path in top.rglob("*") if path != taken]
    names = {path.name for path in created}
    assert names > {"record.json", "0_submitted.pkl", "progress.json", "mine.pt", "last", "lock"}
    assert any(".backup-" in name for name in names)
    for path in created:
        on_board = (place / "board") in (path, *path.parents)
        forbidden = 0o022 if on_board else umask | 0o022
        mode = path.lstat().st_mode
        is_open = stat.S_ISLNK(mode) or (on_board and mode & stat.S_ISVTX)
        assert is_open or not mode & forbidden, f"{path}: {oct(mode)}"
    (entry,) = (place / "board" / "quick").iterdir()
    assert stat.S_IMODE(entry.stat().st_mode) == 0o755
    assert {stat.S_IMODE(path.stat().st_mode) for path in entry.iterdir()} == {0o644}
