"""Check the batch script that learners repair: its options as sbatch reads them, its commands."""

from __future__ import annotations

import argparse
import math
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import tomllib
from itertools import takewhile
from pathlib import Path

from course.checks.shared_progress import save_check
from course.checks.verdict import FAILED, PASSED, UNTIMED, Checked, Part
from course.jobs import slurm_partitions
from course.lab import read_utf8
from course.runs import runs_root
from labs.start_here.lab import LAB
from labs.start_here.nodes import gpu_count

NAME = "start_here.batch_script"
HERE, PROGRAM = Path(__file__).parent, "hello.py"
MODULE = "pytorch"  # which the program needs
STUBS = ("srun", "sbatch", "python", "python3", "module", "ml")  # only record that they were called
FROM_ENV = "${SRUN_CPUS_PER_TASK:+--cpus-per-task=$SRUN_CPUS_PER_TASK}"  # srun's option, if set
LIMIT_S = 10
SHOWN = 2  # mistakes at once, those to be repaired first


def write_broken_script() -> Path:
    """Write the script with mistakes to the runs folder; do not change an existing one."""
    path = runs_root() / "my_job.sh"
    path.parent.mkdir(parents=True, exist_ok=True)
    for source, target in ((HERE / "broken_job.sh", path), (HERE / PROGRAM, path.parent / PROGRAM)):
        if not target.exists():
            shutil.copyfile(source, target)
    return path


def check_batch_script(path: Path) -> Checked:
    """Show what happens on a cluster because of the script's first mistakes.

    Part "correct" is about its options, "mechanism" about its commands. Where a Slurm responds,
    "effect" is what it replies to `sbatch --test-only`, which may be about this cluster only.
    """
    text = read_utf8(path)
    parts = find_mistakes(text)
    failed, hidden = {mistake.part for mistake in parts}, parts[SHOWN:]
    if not parts:
        job = "4 processes with a GPU and 4 cores each, and enough time"
        calls = ", then ".join(map(" ".join, dry_run(text)[0]))
        parts = [Part("correct", PASSED, job), Part("mechanism", PASSED, calls)]
    if hidden:
        words = f"{len(hidden)} more: repair these first, save the file, and run the check again"
        parts = [*parts[:SHOWN], Part("mistakes", FAILED, words)]
    done = (
        slurm_partitions.ask("sbatch", "--test-only", str(path))
        if slurm_partitions.partitions()
        else None
    )
    reply = (done.stdout + done.stderr).strip() if done else "no Slurm responds here"
    parts.append(Part("effect", UNTIMED, reply))
    verdicts = {part: FAILED if part in failed else PASSED for part in ("correct", "mechanism")}
    texts = [text for entry in _mistakes() for text in re.split("{.*?}", entry["consequence"])]
    save_check(NAME, verdicts | {"effect": UNTIMED}, parts, texts)
    return Checked(NAME, LAB.file_checks[NAME], tuple(parts))


def find_mistakes(text: str) -> list[Part]:
    """Return the consequence of each mistake on a cluster, with the line to look at."""
    calls, errors = dry_run(text)
    start = next((call for call in calls if any(PROGRAM in word for word in call)), [""])
    words = list(takewhile(lambda word: not re.search(rf"python|sh$|{PROGRAM}", word), start[1:]))
    try:  # srun's own options count more than those of sbatch
        options = read_options(text)
        words = words if start[0] == "srun" else []
        step = _parser().parse_known_args(words)[0]
        job = _parser().parse_known_args(words, argparse.Namespace(**vars(options)))[0]
    except ValueError as error:
        return [Part("correct", FAILED, f"Slurm refuses the script: {error}")]
    before = calls[: calls.index(start)] if start in calls else calls
    facts = {
        "gpus": _gpus(job),
        "tasks": _tasks(job),
        "cores": options.cpus_per_task,
        "srun_cores": step.cpus_per_task,
        "minutes": job.time,
        "requested": "the partition's default" if math.isinf(job.time) else f"{job.time:g} minutes",
        "started": start[0],
        "loaded": any(call[0] in ("module", "ml") and MODULE in " ".join(call) for call in before),
        "errors": errors,
    }
    return [
        Part(
            entry["part"], FAILED, entry["consequence"].format(**facts), _line(text, entry["line"])
        )
        for entry in _mistakes()
        if eval(entry["wrong"], {}, facts)
    ]


def _mistakes() -> list[dict[str, str]]:
    return tomllib.loads((HERE / "mistakes.toml").read_text())["mistake"]


def _line(text: str, pattern: str) -> str:
    """Return the last line that has a pattern, with its number; "" if none has."""
    lines = enumerate(text.splitlines(), 1)
    matches = [f"line {n}: {line.strip()}" for n, line in lines if re.search(pattern, line)]
    return matches[-1] if matches else ""


def read_options(text: str) -> argparse.Namespace:
    """Read options as sbatch does: from #SBATCH lines before the first command.

    Raises ValueError, with sbatch's reason, if it would refuse the script.
    """
    if not text.startswith("#!"):
        raise ValueError("its first line must name an interpreter, such as #!/bin/bash")
    words = []
    for line in text.splitlines():
        if line.startswith("#SBATCH"):
            words += shlex.split(line.removeprefix("#SBATCH"), comments=True)
        elif line.strip() and not line.lstrip().startswith("#"):
            break
    return _parser().parse_known_args(words)[0]


def dry_run(text: str) -> tuple[list[list[str]], str]:
    """Run the script's commands in an empty folder, where programs of STUBS only record the call.

    Returns:
        The calls, each as a list of words, and the last line that the script wrote as an error.
    """
    with tempfile.TemporaryDirectory() as folder:
        programs, work, calls = (Path(folder) / name for name in ("bin", "work", "calls"))
        programs.mkdir()
        work.mkdir()
        calls.touch()
        for name in STUBS:
            option = FROM_ENV if name == "srun" else ""
            (programs / name).write_text(
                f'#!/bin/sh\necho "{name} {option} $*" >> {shlex.quote(str(calls))}\n'
            )
            (programs / name).chmod(0o755)
        (work / "job.sh").write_text(text)
        env = {"PATH": f"{programs}:{os.defpath}", "HOME": str(work), "SLURM_JOB_ID": "1"}
        env |= {"SLURM_SUBMIT_DIR": str(work), "SLURM_NTASKS": "4", "SLURM_CPUS_PER_TASK": "4"}
        options = {"cwd": work, "env": env, "stdin": subprocess.DEVNULL, "timeout": LIMIT_S}
        try:
            done = subprocess.run(["bash", "job.sh"], **options, capture_output=True, text=True)
            errors = done.stderr.strip().splitlines()[-1:]
        except subprocess.TimeoutExpired:
            errors = [f"It did not end within {LIMIT_S} s"]
        return [line.split() for line in calls.read_text().splitlines()], "".join(errors)


def minutes(text: str) -> float:
    """Return the minutes of a time limit as Slurm writes it: 90, 90:00, 1:30:00, 0-1, 0-1:30."""
    days, dash, rest = text.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    units = [60, 1, 1 / 60] if dash or len(parts) == 3 else [1, 1 / 60]
    if len(parts) > len(units):
        raise ValueError(text)
    return 1440 * int(days or 0) + sum(part * unit for part, unit in zip(parts, units))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:
        raise ValueError(message)


def _parser() -> argparse.ArgumentParser:
    """Return a parser of the options that the check uses; it ignores all others."""
    parser = _Parser(add_help=False, argument_default=argparse.SUPPRESS)
    for names in ("-N --nodes", "-n --ntasks", "--ntasks-per-node", "--ntasks-per-gpu"):
        parser.add_argument(*names.split(), type=int)
    for names in ("--gres", "-G --gpus", "--gpus-per-node", "--gpus-per-task"):
        parser.add_argument(*names.split())
    parser.add_argument("-c", "--cpus-per-task", type=int, default=1)
    parser.add_argument("-t", "--time", type=minutes, default=math.inf)
    return parser


def _gpus(job: argparse.Namespace) -> int:
    """Return how many GPUs the job requests."""
    options = vars(job)
    nodes = options.get("nodes", 1)
    if "gres" in options:
        return nodes * gpu_count(job.gres)
    tasks = nodes * options.get("ntasks_per_node", 1)
    counts = {"gpus": 1, "gpus_per_node": nodes, "gpus_per_task": options.get("ntasks", tasks)}
    return next(
        (n * int(options[key].split(":")[-1]) for key, n in counts.items() if key in options), 0
    )


def _tasks(job: argparse.Namespace) -> int:
    """Return how many processes srun starts."""
    options = vars(job)
    nodes = options.get("nodes", 1)
    if "ntasks" in options:
        return job.ntasks
    if "ntasks_per_gpu" in options:
        return job.ntasks_per_gpu * _gpus(job)
    return nodes * options.get("ntasks_per_node", 1)
