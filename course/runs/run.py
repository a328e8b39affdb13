"""Runs: one folder each, with the script, its config, its record and its logs.

train.py       the copy that the job executes: editing the original changes nothing
config.json    the Config
launch.json    the request: script, site, GPUs, git commit, hooks
job.json       the job that was submitted for it: its id
started.json   written when the job starts
progress.json  steps, epochs and accuracy so far, and the seconds left
waiting        exists while it waits for its turn among the runs of its job
steps.jsonl    one line per training step, while it runs; of other ranks steps-1.jsonl, …
rank-0.json    of a run with several ranks: this rank's part of the record
rank0.open     (rank1.open, …) exists while the rank's recorder is open; one of several ranks
               renames it to rank0.ended
rank0.done     (rank1.done, …) written when a rank has finished without an error
record.json    written once, atomically, when the run is over: the source of every number
checkpoints/   (weights.pt, report.png, …) what the script or `report` saved
beside/        a run that was repeated to take turns with this one: a folder like this one
logs/          standard output and error

A RecordedRun is a row of its machine's tables instead (`course.runs.rows`). Its folder,
recordings/MACHINE/traces/RUN, exists only if the run has a trace or a different file.

A command in the queue also has such a folder, with launch.json, which names its supervisor's class,
started.json and record.json (`idr_pytools.command`), but no config and no measurements.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from course.config import Config, change, from_dict
from course.runs import failures, rows
from course.runs.evidence import Evidence, from_values
from course.runs.files import PROJECT, read_dict, tail
from course.runs.record import Record
from course.runs.trust import runs_root

if TYPE_CHECKING:
    import pandas as pd

EXECUTORS = ("local", "slurm", "recorded")  # how a site runs jobs
WAITING_FILE = "waiting"
SUBMIT_GRACE_S = 60  # a busy scheduler may take this long to assign a job id
BESIDE = "beside"  # the subfolder of a run that was repeated to take turns with this one
OBJECT_KEY = "object.key"  # the secret with which its ranks sign what they send
FOLDER_VARIABLE = "COURSE_RUN_FOLDER"  # set for every process of a run's job
TAKES_TURNS = "COURSE_TAKES_TURNS"  # set for each rank of a run that takes turns
# Fields that a machine may change (see course.training.precision.resolve).
RESOLVED = ("precision", "gather_bf16", "workers", "steps", "val_steps", "warmup_steps")
RESOLVED += ("context", "layers", "heads", "width")
JOB_FILE = "job.json"
PROGRESS = "progress.json"  # how far it is: see `course.training.progress`
OPEN, ENDED = "rank{rank}.open", "rank{rank}.ended"  # before and after a recorder has finished
ADDED = ".variant.json"  # in place of .py, next to a variant: the added lines, the text's hash
RECORDED = PROJECT / "recordings"  # a folder for each machine, and others
TRACES = "traces"  # in a machine's folder: a folder for each recorded run that left files


@dataclass(frozen=True, repr=False)
class Run:
    """A run. All its attributes are read from its folder, so any process may use it."""

    folder: Path
    is_recorded: ClassVar[bool] = False  # whether it is a RecordedRun
    recorded_on: ClassVar[str] = ""

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def script(self) -> Path:
        """The copy of the script that the job executes."""
        return self.folder / "train.py"

    @property
    def is_command(self) -> bool:
        """Whether this is not a training run, but a command in the queue."""
        return "supervisor" in self.launched

    @property
    def reports_steps(self) -> bool:
        """Whether its script reports steps: a command does not, nor some with their own loop."""
        return not self.is_command and self.launched.get("reports_steps", True)

    @property
    def purpose(self) -> str:
        """Why it was recorded, such as "throughput"; "" if it is not recorded."""
        return self.launched.get("purpose", "")

    @property
    def source(self) -> str:
        """The script that it was launched from, with its folder, such as exercises/train.py."""
        return "/".join(Path(self.launched.get("script", self.script)).parts[-2:])

    @cached_property
    def requested_config(self) -> Config:
        """The config as it was launched; `precision` may be "half"."""
        return _config((self.folder / "config.json").read_text())

    @property
    def config(self) -> Config:
        """The config as it was computed, or as requested while the run is not over.

        They differ in `precision`, because only the machine knows its 16-bit format, and in numbers
        of steps or workers that depend on the images or the machine.
        """
        if "_computed" in self.__dict__:
            return self.__dict__["_computed"]
        requested = self.requested_config
        counted = requested.steps > 0 <= min(requested.val_steps, requested.workers)
        counted = counted and requested.has_sizes
        if requested.precision not in ("half", "tf32") and counted:
            return requested
        if not (record := self.record):
            return requested
        computed = {name: record.config[name] for name in RESOLVED if name in record.config}
        self.__dict__["_computed"] = change(requested, computed)  # a record never changes
        return self.__dict__["_computed"]

    @property
    def lacks_half(self) -> bool:
        """Whether it requested 16 bits and computed in fp32, because the device has no units."""
        if self.requested_config.precision != "half" or self.config.precision != "fp32":
            return False
        return not self.record.hardware.get("half_units")  # otherwise the script scales no loss

    @property
    def launched(self) -> dict[str, Any]:
        """The request, with the job id once there is one."""
        return read_dict(self.folder / "launch.json") | read_dict(self.folder / JOB_FILE)

    @property
    def executor(self) -> str:
        """How its site runs jobs, one of EXECUTORS."""
        return self.launched.get("executor", "local")

    @property
    def gpus(self) -> int:
        """The number of its ranks."""
        return self.launched.get("gpus", 1)

    @property
    def together(self) -> list[Run]:
        """The runs of its job, which take turns."""
        paths = self.launched.get("together", ["."])
        return [type(self)((self.folder / path).resolve()) for path in paths]

    @property
    def job(self) -> Run:
        """The run whose folder has the logs of its job, which is itself unless it takes turns."""
        return type(self)((self.folder / self.launched.get("job_folder", ".")).resolve())

    @property
    def repeats(self) -> list[Run]:
        """Runs that were repeated only for this one."""
        return [run for run in self.together if run.folder.parent == self.folder / BESIDE]

    @property
    def is_repeat(self) -> bool:
        """Whether it was measured again only to take turns with a different run."""
        return self.folder.parent.name == BESIDE

    @property
    def is_being_submitted(self) -> bool:
        """Whether it was launched moments ago, and a process is about to store its job id."""
        request = self.launched
        if "job_id" in request or not request.get("launched_at"):
            return False
        age = datetime.now() - datetime.fromisoformat(request["launched_at"])
        return age.total_seconds() < SUBMIT_GRACE_S

    @property
    def started(self) -> dict[str, Any]:
        """Process ids of the job once it runs; {} while it is queued."""
        return read_dict(self.folder / "started.json")

    @property
    def record(self) -> Record | None:
        """The record, or None while the run is not over."""
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
        """queued or running; at the end ok, oom, failed, timeout, cancelled or lost."""
        if record := self.record:
            return record.status
        return "running" if self.started else "queued"

    @property
    def is_mine(self) -> bool:
        """Whether it is this user's. Another's may name any process or job as its own."""
        place = self.folder  # another's link may lead to this user's run
        return place.exists() and place.lstat().st_uid == place.stat().st_uid == os.getuid()

    @property
    def progress(self) -> dict[str, Any]:
        """How far it is: step and steps (in total), epochs, val_top1, left_s; {} if unknown."""
        return read_dict(self.folder / PROGRESS)

    @property
    def total_steps(self) -> int:
        """The number of its steps; 0 while a complete epoch's are not counted yet."""
        return self.progress.get("steps") or self.config.epochs * self.config.steps

    @property
    def is_waiting_for_turn(self) -> bool:
        """Whether it has waited for a second or more while a different run of its job computes."""
        return (self.folder / WAITING_FILE).exists()

    @property
    def steps(self) -> pd.DataFrame:
        """One row per finished step, with step, epoch, load_s … step_s, loss. Grows while it runs.

        Times are rank 0's; the loss is of the complete batch, the mean over the ranks.
        """
        tables = [self.rank_steps(rank) for rank in range(self.gpus)]
        table = tables[0]
        if len(tables) > 1 and all(map(len, tables)):
            losses = [rank_table.set_index("step")["loss"] for rank_table in tables]
            table["loss"] = table["step"].map(sum(losses) / len(losses))
        return table

    def rank_steps(self, rank: int) -> pd.DataFrame:
        """Return `steps` of one rank: its times, and the loss of its share of the batch."""
        import pandas as pd

        path, steps = self.folder / steps_file(rank), []
        with path.open("rb") if path.is_file() else nullcontext([]) as lines:
            for line in lines:
                with suppress(ValueError):  # incomplete: it is being written, or the disk was full
                    steps.append(json.loads(line))
        return pd.DataFrame([step for step in steps if step])

    @property
    def ranks(self) -> list[dict[str, Any]]:
        """The report of each rank at its end, in order; empty for a run of one process."""
        reports = [read_dict(self.folder / rank_file(rank)) for rank in range(self.gpus)]
        return [report for report in reports if report]

    def evidence(self, rank: int = 0) -> Evidence:
        """Return the evidence of a rank; that of a run of one process is in its record."""
        reports = {report["rank"]: report for report in self.ranks}
        if rank in reports:
            return from_values(Evidence, reports[rank].get("evidence"))
        return self.record.evidence if self.record else Evidence()

    def part(self, name: str) -> dict[str, Any]:
        """Return what a lab has stored with the run, in NAME.json; {} if nothing."""
        return read_dict(self.folder / f"{name}.json")

    @property
    def logs(self) -> list[Path]:
        """Log files, first the standard output of each task, then standard error."""
        if stem := self.launched.get("log"):  # a command's, at a path that its owner chose
            return [Path(f"{stem}.{kind}") for kind in ("out", "err")]
        paths = sorted((self.folder / "logs").glob("*_log.*"))
        return sorted(paths, key=lambda path: path.suffix != ".out")

    def tail(self, lines: int = 20, *, err: bool = False) -> str:
        """Return the end of what its tasks have printed, or of their standard error."""
        suffix = ".err" if err else ".out"
        return "\n".join(tail(path, lines) for path in self.logs if path.suffix == suffix)

    def explain(self) -> str:
        """Return why it is not ok: its status, its error, what to do, where its logs are."""
        if (record := self.record) is None:
            return f"{self.name} is not over yet ({self.status}): wait for it first"
        advice = failures.what_to_do(record.status, record.error, self.source)
        if self.is_command:
            advice = "Fix the cause, and submit it again."
        folder = self.logs[0].parent if self.is_command else self.folder / "logs"
        logs = "" if self.is_recorded else f" Logs: {folder}"  # no log is recorded
        error = record.error.replace("(train.py, line", f"({self.source}, line")  # the copy's name
        return f"{self.name}: {record.status}. {error}\n{advice}{logs}"

    def __eq__(self, other: object) -> bool:  # of any class
        return isinstance(other, Run) and self.folder == other.folder

    def __repr__(self) -> str:
        return f"{self.name} [{self.status}]"


class RecordedRun(Run):
    """A run of a different machine: a row of that machine's tables."""

    is_recorded = True
    executor = "recorded"

    @property
    def recorded_on(self) -> str:
        """The machine, such as nvidia-h100."""
        return self._machine.name

    @property
    def _machine(self) -> Path:
        return self.folder.parent.parent

    @cached_property
    def row(self) -> dict[str, Any]:
        """Its row in the machine's table of runs; {} if it has none."""
        return rows.read(self._machine / rows.RUNS, self.name)

    @property
    def script(self) -> Path:
        """Today's solution, because no copy is kept of the script that ran."""
        return PROJECT / "solutions" / self.requested_config.script

    @cached_property
    def requested_config(self) -> Config:
        return _config(json.dumps(self.row["config"]))

    @property
    def launched(self) -> dict[str, Any]:
        return dict(self.row["request"])

    @property
    def record(self) -> Record:
        # The row has only those fields of the computed config that differ from the requested one.
        config = self.row["config"] | self.row["record"]["config"]
        return Record.from_values(self.row["record"] | {"config": config})

    def rank_steps(self, rank: int) -> pd.DataFrame:
        import pandas as pd

        ranks = rows.read(self._machine / rows.STEPS, self.name).get("ranks", [])
        return pd.DataFrame(ranks[rank] if rank < len(ranks) else [])

    @property
    def ranks(self) -> list[dict[str, Any]]:
        return self.row.get("ranks", [])

    def part(self, name: str) -> dict[str, Any]:
        return self.row.get(name) or super().part(name)


def steps_file(rank: int) -> str:
    """Return the name of the file with a rank's steps."""
    return f"steps-{rank}.jsonl" if rank else "steps.jsonl"


def rank_file(rank: int) -> str:
    """Return the name of the file with a rank's report."""
    return f"rank-{rank}.json"


def find_runs(**fields_wanted: Any) -> pd.DataFrame:
    """Return all runs as a table, newest last: one row per run, one column per field of `Record`.

    Args:
        fields_wanted: keep rows with these values, as in `find_runs(rung="amp", status="ok")`.
    """
    import pandas as pd

    columns = ["run", *(f.name for f in fields(Record))]
    table_rows = []
    for run in all_runs():
        record = run.record or record_of(run, {"status": run.status, "ended_at": ""})
        table_rows.append({"run": run.name, **vars(record)})
    table = pd.DataFrame(table_rows, columns=columns)
    for key, value in fields_wanted.items():
        table = table[table[key] == value]
    return table.sort_values("started_at", kind="stable", ignore_index=True)


def rows_of(runs: Iterable[Run] | pd.DataFrame) -> list[dict[str, Any]]:
    """Return the record's fields of each run, with its `config` as a dict.

    Args:
        runs: runs, or a table of records from `recorded` or `find_runs`.
    """
    import pandas as pd

    if isinstance(runs, pd.DataFrame):
        return runs.to_dict("records")
    records = ((run, vars(run.record) if run.record else {}) for run in runs)
    return [{"status": run.status, **record, "config": vars(run.config)} for run, record in records]


def all_runs() -> list[Run]:
    """Return every run in the runs folder, by name; skip unreadable ones and print the reason."""
    return [job for job in all_jobs() if not job.is_command and is_readable(job)]


def is_readable(run: Run) -> bool:
    """Return whether a run's request can be read; if not, print the reason."""
    try:
        run.together, run.is_being_submitted, run.requested_config  # noqa: B018 - they are parsed
        if run.executor not in EXECUTORS:
            raise ValueError(f"its executor is {run.executor!r}")
    except FileNotFoundError:  # it has no config yet
        return True
    except Exception as error:  # damaged files, or those of a different version
        reason = str(error).split(": choose ")[0]
        _report(
            f"skipped {run.name}: {reason}. A different version of the course may have launched "
            f"it; to hide this message, move {run.folder} elsewhere"
        )
        return False
    return True


@cache  # each line once in a process
def _report(line: str) -> None:
    print(line, file=sys.stderr)


def all_jobs() -> list[Run]:
    """Return every run, and every command that was put into the queue, by name.

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
    return [Run(root / name) for name in names if os.path.isfile(root / name / "launch.json")]


def get(name: str, *, of: Iterable[Run] | None = None) -> Run:
    """Return the run of this name, or the only run whose name contains it.

    Args:
        of: the runs to search; None: all runs.

    Raises:
        ValueError: no run or several runs match; the message lists them.
    """
    runs = {run.name: run for run in (all_runs() if of is None else of)}
    if name in runs:
        return runs[name]
    near = [key for key in runs if name and name in key]
    if len(near) == 1:
        return runs[near[0]]
    names = ", ".join(near or list(runs)[-12:]) or "none yet: course run launches one"
    problem = "several runs match" if near else "no run is called"
    raise ValueError(f"{problem} {name!r} in {runs_root()}: {names}")


def git_sha() -> str:
    """Return the project's commit, with -dirty if files differ from it; "" outside git."""
    command = ["git", "-C", str(PROJECT), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=5).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def record_of(run: Run, values: dict[str, Any]) -> Record:
    """Create a record from `values` (fields of Record) and the request."""
    request = run.launched
    names = ("rung", "site", "gpus", "git_sha", "job_id")
    known = {name: request[name] for name in names if name in request}
    if not run.is_command:
        config = run.requested_config
        known |= {"config": asdict(config), "data": config.data_name}
    if values["status"] == "ok" and run.reports_steps:
        values = values | _unmeasured(values)
    now, began = datetime.now(), run.started.get("started_at")
    known["started_at"] = began or request.get("launched_at", "")
    known["ended_at"] = now.isoformat(timespec="seconds")
    if began:
        known["wall_s"] = (now - datetime.fromisoformat(began)).total_seconds()
    known["logs"] = [os.path.relpath(path, run.folder) for path in run.logs]
    return Record(**known | values)


def _unmeasured(values: dict[str, Any]) -> dict[str, Any]:
    """Return what to record of a run without a measured step: why, and no config it never read."""
    if values.get("steps_measured"):
        return {}
    if "steps_measured" in values:
        return {"not_measured": "all its steps are warm-up: lower warmup_steps, or raise steps"}
    reason = "the script does not call meter.steps(…), so its config may not be what it computed"
    return {"not_measured": reason, "config": {}, "data": ""}


@lru_cache(maxsize=1024)  # it never changes, and `recordings.answer` reads all recorded runs
def _config(text: str) -> Config:
    return from_dict(json.loads(text))
