"""The batch script that learners repair: what its check finds, and what a real Slurm does."""

import os
import shutil
from pathlib import Path

import pytest
from job_helpers import slurm_says

from course.checks.progress import progress
from labs import start_here as lab
from labs.start_here.batch_script import HERE, find_mistakes, minutes, read_options

BROKEN = (HERE / "broken_job.sh").read_text()
REPAIRS = {
    "gets 0 GPUs and needs 4": lambda text: text.replace("# SBATCH", "#SBATCH"),
    "srun starts 1 of 4": lambda text: text.replace("node=1", "node=4"),
    "cores per process: 1 instead of 4": lambda text: text.replace(
        "\ncd", "#SBATCH --cpus-per-task=4\ncd"
    ),
    "after 1.5 minutes of 90": lambda text: text.replace("=1:30", "=1:30:00"),
    "srun counts on 1 core per process": lambda text: text.replace(
        "srun python", "srun --cpus-per-task=4 python"
    ),
    "without the module pytorch": lambda text: text.replace("cd", "module load pytorch\ncd"),
}


def repaired() -> str:
    text = BROKEN
    for repair in REPAIRS.values():
        text = repair(text)
    return text


def found(text: str) -> list[str]:
    """Return the mistakes of REPAIRS that are found, or the whole sentence of a different one."""
    said = [part.evidence for part in find_mistakes(text)]
    return [next((words for words in REPAIRS if words in each), each) for each in said]


def test_each_repair_removes_its_mistake() -> None:
    assert found(BROKEN) == [*REPAIRS] and all(part.look_at for part in find_mistakes(BROKEN))
    for mistake, repair in REPAIRS.items():
        assert found(repair(BROKEN)) == [each for each in REPAIRS if each != mistake]
    assert found(repaired()) == []


RIGHT = {
    "short options": """#!/bin/bash
# A comment, then two options on a line.
#SBATCH -J hello -N 1   # and a comment
#SBATCH -G 4

#SBATCH -n4 -c 4 -t 90
ml pytorch && srun -u -c4 python hello.py
""",
    "options of srun, with variables": """#!/usr/bin/env bash
#SBATCH --gpus-per-node=a100:4 --exclusive --time 0-01:30 --partition gpu
#SBATCH --cpus-per-task=4
#SBATCH --ntasks=1
set -euo pipefail
module purge
module load python/3.12 pytorch/2.8
export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"
srun --ntasks="$SLURM_NTASKS" --kill-on-bad-exit=1 bash -c "python hello.py"
""",
    "the last option counts": BROKEN.replace("# SBATCH", "#SBATCH")
    .replace("job-name=hello", "time=10 --gpus-per-task=1 --ntasks-per-gpu=1")
    .replace("--ntasks-per-node=1", "--ntasks=4")
    .replace("1:30", "01:40:00 -c 4")
    .replace("srun", "module load pytorch/2.8\nsrun -c 4"),
}
WRONG = {
    "without srun": (
        repaired().replace("srun --cpus-per-task=4 ", ""),
        "runs once, on the job's first node",
    ),
    "a refused option": (repaired().replace("node=4", "node=four"), "invalid int value: 'four'"),
    "no interpreter": (repaired().replace("#!", "# "), "its first line must name an interpreter"),
    "an open quote": (repaired().replace("job-name=", "job-name='"), "No closing quotation"),
    "a syntax error": (
        repaired().replace("srun", "if true; srun"),
        "never starts hello.py. job.sh",
    ),
    "too long": (repaired().replace("1:30:00", "20:00:00"), "the time limit is 1200 minutes"),
    "no limit": (
        repaired().replace("#SBATCH --time", "##SBATCH --time"),
        "the time limit is the partition's default",
    ),
    "too many": (repaired().replace("node=4", "node=8"), "srun starts 8 processes for 4 GPUs"),
    "too many cores": (
        repaired().replace("BATCH --cpus-per-task=4", "BATCH --cpus-per-task=40"),
        "Where a node has fewer",
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_script_passes_however_it_is_written(name: str) -> None:
    assert found(RIGHT[name]) == []


@pytest.mark.parametrize("name", WRONG)
def test_other_mistakes_have_a_consequence(name: str) -> None:
    text, words = WRONG[name]
    (consequence,) = found(text)
    assert words in consequence


def test_no_option_after_the_first_command_is_read() -> None:
    late = repaired().replace("#!/bin/bash", "#!/bin/bash\nset -e")
    assert len(found(late)) == 4 and "default" in found(late)[-1]


def test_time_limits_as_slurm_writes_them() -> None:
    texts = ("90", "90:30", "1:30:00", "1-0", "0-1:30", "1-00:00:30")
    assert [*map(minutes, texts)] == [90, 90.5, 90, 1440, 90, 1440.5]
    with pytest.raises(ValueError, match="invalid minutes value: 'soon'"):
        read_options("#!/bin/sh\n#SBATCH --time=soon\n")


def test_the_learners_file_is_written_once_and_checked(
    runs_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("course.jobs.slurm_partitions.partitions", list)  # no Slurm

    def state() -> str:
        return progress().checks.set_index("check").loc["start_here.batch_script", "state"]

    assert state() == "open"
    path = lab.write_broken_script()
    checked = lab.check_batch_script(path)
    assert checked.failed and state() == "failed"
    first, second, more, _ = checked.parts
    assert "gets 0 GPUs" in first.evidence and "srun starts 1 of 4" in second.evidence
    assert more.evidence.startswith("4 more: repair these first")
    path.write_text(repaired().replace("module load pytorch", ""))
    checked = lab.check_batch_script(path)
    assert checked.failed and len(checked.parts) == 2  # no correct part that is not shown
    path.write_text(repaired())
    assert lab.write_broken_script() == path and path.read_text() == repaired()
    checked = lab.check_batch_script(path)
    assert (
        checked.passed
        and "module load pytorch, then srun --cpus-per-task=4 python hello.py" in repr(checked)
    )
    assert state() == "passed"


def test_a_real_slurm_reads_the_scripts_alike(
    slurm: Path, runs_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = lab.write_broken_script()
    programs = runs_root / "bin"  # sbatch gives the job this PATH
    programs.mkdir()
    shutil.copy(shutil.which("true"), programs / "module")
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_CPU_BIND", "none")  # the nodes claim more cores than exist here
    monkeypatch.chdir(runs_root)
    for text, tasks, limit in ((BROKEN, 1, "00:02:00"), (repaired(), 4, "01:30:00")):
        path.write_text(text)
        number = slurm_says("sbatch", "--parsable", "--wait", str(path))
        job = slurm_says("scontrol", "show", "job", number)
        log = (runs_root / f"hello-{number}.out").read_text()
        assert log.count("process ") == tasks and f"of {tasks} on" in log
        assert f"TimeLimit={limit}" in job and ("gres/gpu" in job) == (tasks == 4)
    checked = lab.check_batch_script(path)
    assert checked.passed and "to start at" in checked.parts[-1].evidence
    status, partitions, *_ = lab.doctor.slurm()
    assert status == "ok" and "a node, " in partitions
