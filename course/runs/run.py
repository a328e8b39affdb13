"""Runs: a folder each, with the script that ran, its config, its record and its logs.

train.py       the snapshot that the job executes: editing the original changes nothing
config.json    the Config
launch.json    who launched what, where: script, site, GPUs, job id, git commit
started.json   written when the job's turn comes
waiting        there while it waits for its turn among the runs of its job
steps.jsonl    one line a training step, while it runs; of further ranks steps-1.jsonl, …
rank-0.json    of a run of several ranks: what each alone knows
record.json    written once, atomically, when the run is over: the source of every number
beside/        a run that was repeated for this one to take turns with: a folder like this one
logs/          standard output and error

A recorded run is a row of its machine's tables instead (`course.runs.rows`). Its folder,
recordings/MACHINE/traces/RUN, is there only if the run left a trace or another file.

A job that runs a script of anybody's instead, command.sh, has such a folder too, with launch.json,
started.json and record.json (`course.jobs.commands`); it has no config and measures nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from datetime import datetime
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from course.config import Config, from_dict
from course.runs import rows
from course.runs.record import Record

if TYPE_CHECKING:
    import pandas as pd

EXECUTORS = ("local", "slurm", "recorded")  # what a site's jobs run by
WAITING_FILE = "waiting"
RACE_BEGAN = "race-began"  # a run of a race creates it as its clock starts
RACE_CLOCK = "race-clock.json"  # and how long its supervisor saw it take
SUBMIT_GRACE_S = 60  # a busy scheduler may take so long to give a job its id
BESIDE = "beside"  # the folder, in a run's, of the run that was repeated for it
FOLDER_VARIABLE = "COURSE_RUN_FOLDER"  # set for every process of a run's job
RESOLVED = ("precision", "policy")  # what a machine may change: course.training.precision.resolve
GROUP = "#group"  # behind the folder in that variable: what serves several runs, and none alone
COMMAND = "command.sh"  # the script of a job that is no training run
ADDED = ".variant.json"  # in place of .py, beside a variant: what was put in, the text's hash
PROJECT = Path(__file__).resolve().parents[2]
RECORDED = PROJECT / "recordings"  # a folder for each machine, and the race's entries
TEST_FILE = "test.json"  # in a run's folder: its accuracy on images that no search looked at
TRACES = "traces"  # in a machine's folder: a folder for each recorded run that left files


def runs_root() -> Path:
    """The folder of all runs: the variable COURSE_RUNS, else runs/ in the project.

    On a cluster it must lie on a disk that login and compute nodes share.

    Raises:
        ValueError: the variable is set, and empty.
    """
    return (folder_from("COURSE_RUNS") or PROJECT / "runs").resolve()


def folder_from(variable: str) -> Path | None:
    """The folder that an environment variable names; None where it is not set.

    A relative one counts from the project's folder, so that a terminal and a notebook, whose
    working directory is notebooks/, agree.

    Raises:
        ValueError: it is set, and empty.
    """
    value = os.environ.get(variable)
    if value is not None and not value.strip():
        raise ValueError(
            f"{variable} is set, but empty: expected a folder. Write export {variable}=FOLDER, "
            f"or unset {variable} for the default folder"
        )
    return None if value is None else PROJECT / Path(value).expanduser()


@dataclass(frozen=True, repr=False)
class Run:
    """One launched run. Everything is read from its folder, so any process may hold it."""

    folder: Path

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def script(self) -> Path:
        """The snapshot that ran. Of a recorded run none is kept: the solution as it is today."""
        if self.is_recorded:
            return PROJECT / "solutions" / self.requested_config.script
        return self.folder / (COMMAND if self.is_command else "train.py")

    @property
    def is_command(self) -> bool:
        """Is it no training run, but a command that somebody put into the queue?"""
        return (self.folder / COMMAND).exists()

    @property
    def is_recorded(self) -> bool:
        """Is it a run of another machine, a row of that machine's tables?"""
        return bool(self._row)

    @property
    def recorded_on(self) -> str:
        """The machine that a recorded run is of, say nvidia-h100; "": it is not recorded."""
        return self.folder.parent.parent.name if self.is_recorded else ""

    @cached_property
    def _row(self) -> dict[str, Any]:
        """Its row in the machine's table of runs; {} of a run that is not recorded."""
        return self._read_row(rows.RUNS)

    def _read_row(self, table: str) -> dict[str, Any]:
        folder = self.folder.parent
        return rows.read(folder.parent / table, self.name) if folder.name == TRACES else {}

    @property
    def purpose(self) -> str:
        """Why it was recorded, one of `recordings.PURPOSES`; "": it is a run of one's own."""
        return self.launched.get("purpose", "")

    @property
    def source(self) -> str:
        """The script that it was launched from, with its folder: exercises/train.py."""
        return "/".join(Path(self.launched.get("script", self.script)).parts[-2:])

    @cached_property
    def requested_config(self) -> Config:
        """The config as it was launched; `precision` may be "half"."""
        if row := self._row:
            return _config(json.dumps(row["config"]))
        return _config((self.folder / "config.json").read_text())

    @property
    def config(self) -> Config:
        """The config as it was computed, or as requested while the run is not over.

        They differ in `precision`, since only the machine that computes knows its 16-bit format.
        """
        if "_computed" in self.__dict__:
            return self.__dict__["_computed"]
        requested = self.requested_config
        if requested.precision not in ("half", "tf32") or not (record := self.record):
            return requested
        computed = {name: record.config[name] for name in RESOLVED if name in record.config}
        self.__dict__["_computed"] = replace(requested, **computed)  # a record never changes
        return self.__dict__["_computed"]

    @property
    def lacks_half(self) -> bool:
        """Whether it asked for 16 bits and computed in fp32, on a device without such hardware."""
        if self.requested_config.precision != "half" or self.config.precision != "fp32":
            return False
        return not self.record.hardware.get("half_units")  # else its script scales no loss

    @property
    def launched(self) -> dict[str, Any]:
        """What was asked for, with the job id once there is one."""
        return dict(self._row.get("request") or _read_json(self.folder / "launch.json"))

    @property
    def together(self) -> list[Run]:
        """The runs of its job, which take turns; a run that is launched by itself is alone."""
        paths = self.launched.get("together", ["."])
        return [Run((self.folder / path).resolve()) for path in paths]

    @property
    def job(self) -> Run:
        """The run in whose folder the logs of its job lie: itself, unless it takes turns."""
        return Run((self.folder / self.launched.get("job_folder", ".")).resolve())

    @property
    def repeats(self) -> list[Run]:
        """Runs that were repeated for this one alone."""
        return [each for each in self.together if each.folder.parent == self.folder / BESIDE]

    @property
    def is_repeat(self) -> bool:
        """Was it measured again only so that another run has something beside it?"""
        return self.folder.parent.name == BESIDE

    @property
    def is_being_submitted(self) -> bool:
        """Launched moments ago, and without a job id yet: another process is about to give one."""
        asked = self.launched
        if "job_id" in asked or not asked.get("launched_at"):
            return False
        age = datetime.now() - datetime.fromisoformat(asked["launched_at"])
        return age.total_seconds() < SUBMIT_GRACE_S

    @property
    def started(self) -> dict[str, Any]:
        """Process ids of the job once it runs; empty while it waits for its turn."""
        return _read_json(self.folder / "started.json")

    @property
    def record(self) -> Record | None:
        """The record, or None while the run is not over."""
        if row := self._row:  # of the config, the record has only what the machine changed
            config = row["config"] | row["record"]["config"]
            return Record.from_values(row["record"] | {"config": config})
        path = self.folder / "record.json"
        try:
            return Record.from_json(path.read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            message = f"{path} cannot be read ({error}). It is left as it is; rerun=True repeats"
            return Record("lost", rung=self.launched.get("rung", ""), error=message)

    @property
    def status(self) -> str:
        """queued, running, or how it ended: ok, oom, failed, timeout, cancelled, lost."""
        if record := self.record:
            return record.status
        return "running" if self.started else "queued"

    @property
    def is_waiting_for_turn(self) -> bool:
        """Whether it has waited for a second or more while another run of its job computes."""
        return (self.folder / WAITING_FILE).exists()

    @property
    def steps(self) -> pd.DataFrame:
        """One row a finished step: step, epoch, load_s … step_s, loss. Grows while it runs.

        Times are rank 0's; the loss is of the whole batch, the mean over the ranks.
        """
        tables = [self.rank_steps(rank) for rank in range(self.launched.get("gpus", 1))]
        table = tables[0]
        if len(tables) > 1 and all(map(len, tables)):
            losses = [each.set_index("step")["loss"] for each in tables]
            table["loss"] = table["step"].map(sum(losses) / len(losses))
        return table

    def rank_steps(self, rank: int) -> pd.DataFrame:
        """As `steps`, of one rank: its own times, and the loss on its own share of the batch."""
        import pandas as pd

        if self.is_recorded:
            ranks = self._read_row(rows.STEPS).get("ranks", [])
            return pd.DataFrame(ranks[rank] if rank < len(ranks) else [])
        path = self.folder / steps_file(rank)
        lines = path.read_text().splitlines() if path.exists() else []
        return pd.DataFrame([row for row in map(_step, lines) if row])

    @property
    def ranks(self) -> list[dict[str, Any]]:
        """What each rank alone knew at its end, in order; empty for a run of one process."""
        if row := self._row:
            return row.get("ranks", [])
        every = range(self.launched.get("gpus", 1))
        return [own for rank in every if (own := _read_json(self.folder / rank_file(rank)))]

    @property
    def test(self) -> dict[str, Any]:
        """What it got right of images that its search had not looked at; {}: never tested."""
        return self._row.get("test") or _read_json(self.folder / TEST_FILE)

    @property
    def logs(self) -> list[Path]:
        """Log files, standard output of each task first, then standard error."""
        if stem := self.launched.get("log"):  # a command's, where its owner wants them
            return [Path(f"{stem}.{kind}") for kind in ("out", "err")]
        found = sorted((self.folder / "logs").glob("*_log.*"))
        return sorted(found, key=lambda path: path.suffix != ".out")

    def __repr__(self) -> str:
        return f"{self.name} [{self.status}]"


def steps_file(rank: int) -> str:
    """The name of the file with a rank's steps."""
    return f"steps-{rank}.jsonl" if rank else "steps.jsonl"


def rank_file(rank: int) -> str:
    """The name of the file with what a rank alone knew."""
    return f"rank-{rank}.json"


def find_runs(**wanted: Any) -> pd.DataFrame:
    """All runs as a table, newest last: one row a run, one column a field of `Record`.

    Args:
        wanted: keep rows whose field equals the value, as in `find_runs(rung="amp", status="ok")`.

    Raises:
        ValueError: a field that records do not have; the message lists those they have.
    """
    import pandas as pd

    columns = ["run", *(f.name for f in fields(Record))]
    if unknown := set(wanted) - set(columns):
        raise ValueError(f"records have no {sorted(unknown)}; they have {', '.join(columns)}")
    rows = [_row(run) for run in all_runs()]
    table = pd.DataFrame(rows, columns=columns)
    for key, value in wanted.items():
        table = table[table[key] == value]
    return table.sort_values("started_at", kind="stable", ignore_index=True)


def all_runs() -> list[Run]:
    """Every run in the runs folder, by name; an unreadable one is skipped, with its reason."""
    return [job for job in all_jobs() if not job.is_command and _is_readable(job)]


def _is_readable(run: Run) -> bool:
    try:
        run.requested_config, run.together, run.is_being_submitted  # noqa: B018 - they are parsed
        if (executor := run.launched.get("executor", "local")) not in EXECUTORS:
            raise ValueError(f"its executor is {executor!r}")
    except FileNotFoundError:  # it has no config yet
        return True
    except (OSError, ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        _report_skipped(run, str(error).split(": choose ")[0])
        return False
    return True


@cache  # each run once in a process
def _report_skipped(run: Run, reason: str) -> None:
    print(
        f"skipped {run.name}: {reason}. Another version of the course may have launched it; "
        f"to hide this message, move {run.folder} elsewhere",
        file=sys.stderr,
    )


def all_jobs() -> list[Run]:
    """Every run, and every command that has or had its place in the queue, by name.

    Raises:
        ValueError: the runs folder cannot be read.
    """
    root = runs_root()
    try:
        names = sorted(os.listdir(root))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise ValueError(
            f"the runs folder {root} cannot be read ({error.strerror}): set COURSE_RUNS to a "
            f"folder of your own"
        ) from error
    return [Run(root / name) for name in names if os.path.exists(root / name / "launch.json")]


def get(name: str, *, of: Iterable[Run] | None = None) -> Run:
    """The run whose name is, or alone begins with or contains, `name`.

    Args:
        of: those to look among; None: every run.

    Raises:
        ValueError: none or several; the message lists the candidates.
    """
    runs = {run.name: run for run in (all_runs() if of is None else of)}
    if name in runs:
        return runs[name]
    near = [key for key in runs if name and name in key]
    if len(near) == 1:
        return runs[near[0]]
    listed = ", ".join(near or list(runs)[-12:]) or "none yet: course run launches one"
    problem = "several runs match" if near else "no run is called"
    raise ValueError(f"{problem} {name!r} in {runs_root()}: {listed}")


def git_sha() -> str:
    """The project's commit, with -dirty where files differ from it; empty outside git."""
    command = ["git", "-C", str(PROJECT), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=5).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def record_of(run: Run, values: dict[str, Any]) -> Record:
    """A record of `values` (fields of Record), completed by what was asked for at launch."""
    asked = run.launched
    known = {
        key: asked[key]
        for key in ("rung", "site", "gpus", "git_sha", "config", "job_id")
        if key in asked
    }
    known["data"] = asked.get("config", {}).get("data", "")
    known["started_at"] = run.started.get("started_at", asked.get("launched_at", ""))
    known["logs"] = [os.path.relpath(path, run.folder) for path in run.logs]
    return Record(**{**known, **values, "ended_at": datetime.now().isoformat(timespec="seconds")})


def _step(line: str) -> dict[str, Any] | None:
    try:
        return json.loads(line)
    except ValueError:  # cut: it is being written, or the disk was full
        return None


def _row(run: Run) -> dict[str, Any]:
    record = run.record
    if record is not None:
        return {"run": run.name, **vars(record)}
    launched = run.launched
    config = launched.get("config", {})
    return {
        "run": run.name,
        "status": run.status,
        "rung": launched.get("rung", ""),
        "site": launched.get("site", ""),
        "gpus": launched.get("gpus", 1),
        "job_id": launched.get("job_id", ""),
        "data": config.get("data", ""),
        "started_at": launched.get("launched_at", ""),
        "config": config,
    }


@lru_cache(maxsize=1024)  # it cannot change, and an answer is sought among all recorded runs
def _config(text: str) -> Config:
    return from_dict(json.loads(text))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}
