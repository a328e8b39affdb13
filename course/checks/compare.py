"""Compare a learner's script with the solution: both train the same small runs on the CPU.

They train in a separate process (`course.checks.small_runs`), so that no script can crash the
notebook. `course.checks.facts` lists what must be equal.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from tqdm import tqdm

from course.checks import discovery
from course.checks.exercises import SOLUTIONS, render_like, solution_of
from course.checks.facts import RESULTS, SETUP, differences, incompleteness
from course.checks.lab import Exercise
from course.config import RUNGS, Config, change, rung
from course.jobs.processes import job_environment, loopback
from course.runs import failures, trust
from course.runs.files import tail
from course.runs.run import PROJECT, Run

PRINTED_LINES = 1000  # of the script's own output that are shown
# The config of every small run. Its learning rate and weight decay are large, so that mistakes show
# in the weights after a few steps; the numbers of images, steps and ranks differ.
SMALL: dict[str, Any] = {
    "device": "cpu",
    "precision": "fp32",
    "data": "imagenet",
    "model": "resnet18",
    "image_px": 32,
    "batch_size": 8,
    "workers": 0,
    "persistent_workers": False,
    "epochs": 2,
    "steps": 3,
    "warmup_steps": 4,
    "val_steps": 2,
    "val_images": 15,
    "lr": 0.02,
    "weight_decay": 0.1,
    "budget_s": 0.0,
    "collective_timeout_s": 40,
    "save_weights": True,
    "fused": False,
}
LOST = (
    "the ranks lost each other: one ended, or they call different collectives. All ranks must call "
    "the same ones in the same order"
)
ENDED = "the script, or one of its ranks, ended before the training was complete"


class SmallRun(NamedTuple):
    """A config that both scripts train, the number of ranks, and its changes in words."""

    name: str
    config: Config
    ranks: int
    words: str


def small_runs(wanted: Exercise) -> list[SmallRun]:
    """Return the small runs of a check, from `Exercise.configs`."""
    runs = []
    for changes in wanted.configs:
        fields = dict(changes)
        name, ranks = fields.pop("name", ""), fields.pop("ranks", wanted.gpus)
        label = fields.pop("rung", wanted.rung)
        config = _config(wanted, label, fields)
        name = name or _digest(config, ranks)
        words = [f"the rung {label}"] * ("rung" in changes or not fields)
        words += [f"cfg.{key}={value!r}" for key, value in fields.items()]
        words = " and ".join(words) + f" on {ranks} ranks" * (ranks > 1)
        runs.append(SmallRun(name, config, ranks, words))
    return runs


def _config(wanted: Exercise, label: str, changes: dict[str, Any]) -> Config:
    """Return a small config of a rung, with the check's changes if it is the check's rung."""
    settings = wanted.changes if label == wanted.rung != wanted.against else {}
    return change(RUNGS[label], settings | wanted.small | changes, optional=SMALL)


def _digest(*values: Any) -> str:
    return hashlib.sha256(repr(values).encode()).hexdigest()[:12]


class Comparison(NamedTuple):
    """The result of a comparison.

    difference: the first difference, with a hint; "" if there is none. compared: the small runs in
    words. printed: the script's own output. error: why the solution could not train here.
    """

    difference: str
    compared: str = ""
    printed: str = ""
    error: str = ""


def compare(requests: Sequence[tuple[Exercise, str]]) -> list[Comparison]:
    """Compare scripts with the solution in which the same TODOs are filled.

    Args:
        requests: for each script the check that it is for, and its text.

    Raises:
        RuntimeError: the other process could not work; the message has its error.
    """
    folder = _folder()
    with TemporaryDirectory(dir=folder.root, prefix="script-") as place:
        pairs = []
        try:
            for number, (wanted, text) in enumerate(requests):
                solution = render_like((SOLUTIONS / solution_of(wanted.name)).read_text(), text)
                reference = folder.prepare(_digest(wanted.name, solution), wanted, solution)
                runs = folder.prepare(f"{place}/{number}", wanted, text, calls=True)
                pairs.append((wanted, runs, reference))
        except BaseException:  # what is prepared would be trained with the next scripts
            folder.stop()
            raise
        folder.work()
        return [_compare(*pair) for pair in pairs]


class Folder:
    """Small runs and the process that trains them: it imports PyTorch once, and trains each small
    run of the solution once."""

    def __init__(self) -> None:
        trust.check()
        self._temporary = TemporaryDirectory(prefix="check-")
        self.root = Path(self._temporary.name)
        self._tasks: list[tuple[str, int, str]] = []
        self._modules: set[str] = set()
        self._has_shards = False
        path = os.pathsep.join([str(PROJECT), os.environ.get("PYTHONPATH", "")])
        env = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
        # Otherwise gloo looks up the host's name for each group of ranks: without an answer, 10 s.
        env |= {"GLOO_SOCKET_IFNAME": loopback()}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "course.checks.small_runs", str(self.root)],
            env=job_environment() | env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=PROJECT,
            start_new_session=True,
        )
        atexit.register(self.stop)

    @property
    def is_alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    def stop(self) -> None:
        """End the process, and all that it has started."""
        with self._process:
            if self.is_alive:
                os.killpg(self._process.pid, signal.SIGKILL)
        self._temporary.cleanup()

    def prepare(
        self, place: str, wanted: Exercise, text: str, *, calls: bool = False
    ) -> dict[str, Run]:
        """Prepare a check's small runs of a script, once; with `calls` its calls, too."""
        runs = {}
        for name, config, ranks, _ in small_runs(wanted):
            runs[name] = self.add(f"{place}/{name}", text, config, ranks)
        for call in wanted.calls if calls else ():
            name = call.replace(":", ".")
            settings = wanted.settings | wanted.changes | {"image_px": 32}
            config = rung(wanted.rung, quick=True, **settings)
            runs[name] = self.add(f"{place}/{name}", text, config, 1, call)
        self._modules |= modules_of(text)
        return runs

    def add(self, name: str, text: str, config: Config, ranks: int, call: str = "") -> Run:
        """Prepare a small run of a script, or a call of a function, unless it exists."""
        place = self.root / name
        if place.exists():
            return Run(place)
        place.mkdir(parents=True)
        values = asdict(config)
        if "data_root" in values:
            values["data_root"] = str(self.root / "data" / "tiny")
        launched = {"rung": config.rung, "script": "exercises/train.py", "gpus": ranks}
        (place / "train.py").write_text(text)
        (place / "config.json").write_text(json.dumps(values))
        (place / "launch.json").write_text(json.dumps(launched))
        self._tasks.append((name, ranks, call))
        self._has_shards |= config.format == "shards"
        # Imported once, so that the processes of the runs need not import them again.
        self._modules |= {"torch._dynamo"} if config.compile else set()
        self._modules |= {"course.checks.fake_accelerator"} if call else set()
        return Run(place)

    def work(self) -> None:
        """Train all prepared runs in the other process; show how many have ended.

        The line of progress is hidden where it could not be updated, such as in a log.
        """
        layout = "{desc} |{bar}| {n}/{total} small runs, {elapsed}"
        is_shown = sys.stdout.isatty() or "ipykernel" in type(sys.stdout).__module__
        bar = tqdm(
            desc="comparing with the solution",
            total=len(self._tasks),
            file=sys.stdout,
            bar_format=layout,
            ncols=79,
            leave=False,
            disable=not is_shown or not self._tasks,
        )
        request = {"tasks": self._tasks, "imports": sorted(self._modules)}
        assert self._process.stdin and self._process.stdout
        try:
            with suppress(BrokenPipeError):
                self._process.stdin.write(json.dumps(request | {"shards": self._has_shards}) + "\n")
                self._process.stdin.flush()
            while (answer := self._process.stdout.readline()).strip().isdigit():
                bar.n = int(answer)
                bar.refresh()
        except BaseException:  # such as an interrupt: this answer would be taken for the next
            self.stop()
            raise
        finally:
            bar.close()
        self._tasks = []
        if answer != "done\n":
            self.stop()
            why = answer.strip() or "it ended"
            raise RuntimeError(
                f"the process that compares with the solution failed: {why}. Was memory short?"
            )


_folders: list[Folder] = []  # in this process: none, or one that keeps the solution's runs


def _folder() -> Folder:
    if _folders and not _folders[0].is_alive:
        _folders.pop().stop()
    if not _folders:
        _folders.append(Folder())
    return _folders[0]


def modules_of(text: str) -> set[str]:
    """Return the modules that a script imports from packages that take time to import."""
    return {*re.findall(r"^from ((?:torch|torchvision|course)\b[\w.]*) import", text, re.MULTILINE)}


def _compare(
    wanted: Exercise, learner_runs: dict[str, Run], solution_runs: dict[str, Run]
) -> Comparison:
    runs, in_script = small_runs(wanted), ("train.py, line", f"{solution_of(wanted.name)}, line")
    compared = "trains like the solution with " + "; ".join(run.words for run in runs)
    printed = _printed(learner_runs[runs[0].name]) if runs else ""
    for name, _, _, words in runs:
        if why := error_of(solution_runs[name]):
            error = f"the solution itself fails here, with {words}: {why}"
            return Comparison("", compared, printed, error)
    for call in wanted.calls:
        run = learner_runs[call.replace(":", ".")]
        path = run.folder / "problems.json"
        # If fake tensors crash the process, the cause is in PyTorch: small runs did not crash it.
        if path.exists() and (problems := json.loads(path.read_text())):
            return Comparison(problems[0].replace(*in_script), compared, printed)
    for name, _, _, words in runs:
        pair = learner_runs[name], solution_runs[name]
        error = error_of(pair[0])
        facts = (*SETUP, *discovery.facts(wanted.name), *RESULTS, *wanted.facts)
        if symptom := f": {error}" if error else next(differences(facts, *pair), ""):
            message = next(differences(wanted.causes, *pair, error), "")
            if message and error not in ("", LOST):  # the cause is not the line that failed
                message += f". The error: {error.partition(' (train.py, line')[0]}"
            message = f"with {words}{message or symptom}".replace(*in_script)
            return Comparison(message, compared, printed)
    return Comparison("", compared, printed)


def error_of(run: Run) -> str:
    """Return why a small run failed, in one line; "" if it did not."""
    if (path := run.folder / "signal.txt").exists() and not (run.record and run.record.error):
        ended = path.read_text()
        is_lost = ended == "SIGABRT" and run.gpus > 1
        return LOST if is_lost else re.sub("^SIG", "the script ended its process: SIG", ended)
    if run.record and run.record.status == "ok":
        if run.gpus > 1 and len(run.ranks) < run.gpus:
            return ENDED
        reasons = [incompleteness(run.evidence(rank)) for rank in range(run.gpus)]
        return next(filter(None, reasons), "")
    errors = [rank["error"] for rank in run.ranks] + [run.record.error if run.record else ""]
    errors = [error for error in errors if error]
    if causes := [x for x in errors if not failures.is_echo(x) and "gloo/transport" not in x]:
        lines = causes[0].strip().splitlines()
        # The error in a checkpoint's tracebacks, or in front of a module's many lines.
        error = [line for line in lines if re.match(r"\s*\w", line)][-1]
        place = re.search(r" \(train.py, line \d+\)", lines[-1])
        error += place[0] if place and place[0] not in error else ""
        return re.sub(r"/\S*/check-[^\s'\"]*/", "", error)  # the folder of the small run
    if errors:
        return LOST
    return ENDED


def _printed(run: Run) -> str:
    lines = tail(run.folder / "printed-0.txt", PRINTED_LINES).split("\n")
    return "\n".join(x for x in lines if not re.match(r"epoch \d+ (of|validated)|asked to end", x))
