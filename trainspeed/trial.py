"""Try changes to an unmodified script: which help, and is it still the same training?"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from trainspeed.comparison import CompareError, Comparison, compare, ended_by_signals
from trainspeed.turns import ENDED

SECONDS = 30.0  # of measuring each change
LEAST_LOSSES = 8  # to judge whether it is the same training
ROUNDING = {"bf16": 1e-2}  # relative differences of losses that rounding explains
OTHER_ROUNDING = 1e-3
# Differences that are still those of the same training: to the one between two runs of the
# original, and, if batches are other random ones, to the one between two seeds.
COPIES, RANDOM_BATCHES = 3.0, 1.5
INTERRUPTED = 130  # the exit code after Ctrl-C
FUSIBLE = ("Adam", "AdamW", "SGD")
ORIGINAL, OTHER_SEED, TOGETHER = "original", "original, another seed", "together"
# Services that would note each run: they write to a temporary folder, or nothing.
OFFLINE = {
    "WANDB_MODE": "offline",
    "COMET_MODE": "disabled",
    "NEPTUNE_MODE": "debug",
    "CLEARML_OFFLINE_MODE": "1",
}
OFFLINE_FOLDERS = ("WANDB_DIR", "TRACKIO_DIR", "MLFLOW_TRACKING_URI")
# PyTorch's compiler runs what is in its caches, and anyone can create the usual ones in /tmp first.
# Precompiled headers have no other place.
COMPILER_FOLDERS = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
NO_HEADERS = {"TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0"}
HUB = {"HF_HUB_OFFLINE": "1"}  # not while profiling, which may download


class TrialError(ValueError):
    """A script that is not tried; the message has the reason."""


@dataclass(frozen=True)
class Change:
    """A change that the profile suggests.

    Attributes:
        name: as in `trainspeed.changes.Trial.changes`.
        arguments: of it.
        code: what to write.
        line: where.
    """

    name: str
    arguments: dict[str, Any]
    code: str
    line: str


@dataclass
class Losses:
    """What the runs of one side reported: of each backward pass, and of each batch."""

    losses: list[float] = field(default_factory=list)
    batches: list[float] = field(default_factory=list)
    applied: set[str] = field(default_factory=set)

    def add(self, report: dict[str, Any]) -> None:
        """Add a report of `trainspeed.changes.Trial`."""
        self.losses += report["losses"]
        self.batches += report["batches"]
        self.applied |= {*report["applied"]}


@dataclass
class Result:
    """What was found out about a change.

    Attributes:
        change: or the changes that helped, together.
        comparison: with the original; None if it failed.
        is_same: whether it is the same training; None if that was not judged.
        training: why, in a few words.
        failure: why it could not be measured.
    """

    change: Change
    comparison: Comparison | None = None
    is_same: bool | None = None
    training: str = ""
    failure: str = ""

    @property
    def helps(self) -> bool:
        """Whether it is clearly faster, and the same training as far as known."""
        if self.comparison is None or self.comparison.is_noisy or self.is_same is False:
            return False
        return self.comparison.ratio.low > 1

    def to_dict(self) -> dict[str, Any]:
        """Return everything as values that JSON has."""
        comparison = self.comparison.to_dict() if self.comparison else None
        values = asdict(self.change) | {"comparison": comparison}
        names = ("helps", "is_same", "training", "failure")
        return values | {name: getattr(self, name) for name in names}


# Which changes fit.


def suggest(values: dict[str, Any]) -> list[Change]:
    """Return the changes that fit a profile, as `trainspeed.page.values_of` returns it."""
    limits = {limit["name"]: limit for limit in values["limits"]}
    machine, forwards = values["machine"], values["forwards"]
    is_gpu = machine["device"] != "cpu"
    # Losses have a module, too, but no parameters.
    trained = [row for row in forwards if row["parameters"] and row["is_training"]]
    modules = {"modules": sorted({row["module"] for row in trained})}
    call = trained[0]["line"] if trained else ""
    created = values["optimizers"][0]["line"] if values["optimizers"] else ""
    changes = [*_suggest_workers(values, limits)] if "data" in limits else []
    is_image = any(_is_image(text) for row in trained for text in row["inputs"])
    if is_gpu and is_image and not (machine["cudnn_benchmark"] or machine["deterministic"]):
        code = "torch.backends.cudnn.benchmark = True"
        changes.append(Change("cudnn_benchmark", {}, code, "at the beginning"))
    if "format" in limits:
        if machine["device"] == "cuda" and machine["float32_matmul_precision"] == "highest":
            code = 'torch.set_float32_matmul_precision("high")'
            changes.append(Change("tf32", {}, code, "at the beginning"))
        if trained and not any(row["autocast"] for row in trained):
            code = f'with torch.autocast("{machine["device"]}", torch.bfloat16): …'
            changes.append(Change("bf16", modules, code, call))
    if is_image and trained and ("layout" in limits or "format" in limits):
        code = "model.to(memory_format=torch.channels_last), and the images, too"
        changes.append(Change("channels_last", modules, code, created))
    if "optimizer" in limits:
        row = max(values["optimizers"], key=lambda row: row["parameters"])
        is_fusible = row["kind"] in FUSIBLE or row["kind"] == "Adagrad" and not is_gpu
        if is_fusible and row["implementation"] == "default":
            code = f"torch.optim.{row['kind']}(…, fused=True)"
            changes.append(Change("fused", {}, code, row["line"]))
    if trained and ({"launch", "memory"} & {*limits}) and not values["is_compiled"]:
        changes.append(Change("compile", modules, "model.compile(), before it", created))
    return changes


def _is_image(description: str) -> bool:
    return bool(re.fullmatch(r"float\d+ \(\d+, \d+, \d+, \d+\)", description))


def _suggest_workers(values: dict[str, Any], limits: dict[str, Any]) -> Iterator[Change]:
    machine = values["machine"]
    loader = max(values["loaders"], key=lambda loader: loader["wait_s"])
    most = max(1, min(machine["cores"] // values["ranks"] - 1, 8))
    arguments: dict[str, Any] = {}
    if loader["length"] is not None and loader["workers"] < most:
        arguments["num_workers"] = most
    if loader["workers"] or arguments:
        arguments["persistent_workers"] = True
    if machine["device"] == "cuda":
        arguments["pin_memory"] = True
    if any(loader.get(_FIELDS.get(name, name)) != value for name, value in arguments.items()):
        code = ", ".join(f"{name}={value}" for name, value in arguments.items())
        arguments["line"] = loader["line"]
        yield Change("workers", arguments, f"DataLoader(…, {code})", loader["line"])


_FIELDS = {"num_workers": "workers"}


# Is it the same training?


def judge(
    changed: Losses, original: Losses, *, copy: Losses, other_seed: Losses, rounding: float
) -> tuple[bool | None, str]:
    """Return whether losses are those of the same training, and why.

    Short runs show mistakes, not the quality of the trained model.

    Args:
        changed: of the change.
        original: of the same seed.
        copy: of another run of the original.
        other_seed: of a run of the original, with another seed.
        rounding: relative difference that rounding explains.
    """
    count = min(len(changed.losses), len(original.losses))
    if count < LEAST_LOSSES:
        return None, f"not judged: {count} losses, where {LEAST_LOSSES} are needed"
    ours, theirs = np.array(changed.losses[:count]), np.array(original.losses[:count])
    batches = min(len(changed.batches), len(original.batches))
    same_batches = changed.batches[:batches] == original.batches[:batches] and batches > 0
    prefix = "" if same_batches or not batches else "other random batches; "
    if np.array_equal(ours, theirs):
        return True, "the same batches, the same losses" if same_batches else "the same losses"
    if not np.isfinite(ours).all() and np.isfinite(theirs).all():
        return False, f"the loss is not finite from loss {int(np.argmin(np.isfinite(ours)))} on"
    scale = float(np.mean(np.abs(theirs))) or 1.0
    difference = _distance(ours, theirs) / scale
    copies = _distance(copy.losses, theirs) / scale
    seeds = _distance(other_seed.losses, theirs) / scale
    text = f"{prefix}losses differ by {difference:.1%} of their mean"
    if difference <= rounding:
        return True, f"{text}, as by rounding"
    if difference <= COPIES * copies:
        return True, f"{text}, those of two runs of the original by {copies:.1%}"
    most = RANDOM_BATCHES * seeds if prefix else seeds
    return difference <= most, f"{text}, with another seed by {seeds:.1%}"


def _distance(one: Sequence[float], two: Sequence[float]) -> float:
    """Return the root of the mean squared difference, as far as both go; 0 if that is nowhere."""
    count = min(len(one), len(two))
    if not count:
        return 0.0
    return float(np.sqrt(np.mean((np.array(one[:count]) - np.array(two[:count])) ** 2)))


# The trials.


def try_changes(
    command: Sequence[str],
    *,
    seconds: float = SECONDS,
    may_repeat: Callable[[list[dict[str, str]]], bool] = lambda files: not files,
    on_changes: Callable[[list[Change]], None] = lambda changes: None,
    on_result: Callable[[Result], None] = lambda result: None,
    progress: Any = None,
) -> list[Result]:
    """Profile a command, and measure the changes that fit, each in turns with the original.

    A run ends where it would save a checkpoint, and trackers are offline.

    Args:
        command: as in a terminal: ["python", "train.py"].
        seconds: of measuring each change.
        may_repeat: whether to repeat a script that writes these files: path and line of each.
        on_changes: is called with the changes that fit, before they are measured.
        on_result: is called after each change.
        progress: as in `compare`.

    Raises:
        TrialError: the script must not be repeated.
        ProfileError, CompareError, CommandError: it cannot be run.
    """
    with _apart():
        changes, files = _profile(command)
        if not may_repeat(files):
            listed = "\n".join(f"    {file['path']}  ({file['line']})" for file in files[:5])
            raise TrialError(
                f"the script writes files, which each of its runs would overwrite:\n{listed}\n"
                f"If that may be, answer with --yes"
            )
        on_changes(changes)
        if not changes:
            return []
        os.environ.update(HUB)
        tester = _Tester(command, seconds, progress)
        results = []
        for change in changes:
            results.append(tester.measure([change]))
            on_result(results[-1])
        helpful = [result.change for result in results if result.helps]
        if len(helpful) > 1:
            results.append(tester.measure(helpful))
            on_result(results[-1])
        return results


def _profile(command: Sequence[str]) -> tuple[list[Change], list[dict[str, str]]]:
    """Return the changes that fit, and the files that the script has written until then."""
    from trainspeed import page, profile
    from trainspeed.changes import FILES

    changes: list[Change] = []
    files: dict[str, dict[str, str]] = {}
    was_ended = False

    def show(profiles: list[profile.Profile]) -> None:
        nonlocal was_ended
        was_ended = (profiles[0].folder / ENDED).exists()
        values = page.values_of(profiles)
        values["is_compiled"] = profiles[0].values["is_compiled"]
        changes.extend(suggest(values))
        path = profiles[0].folder / FILES
        for line in path.read_text().splitlines() if path.exists() else []:
            file = json.loads(line)
            files.setdefault(file["path"], file)

    try:
        code = profile.profile(command, show, stop=True, trial={"changes": {}})
    except profile.ProfileError as error:
        if getattr(error, "code", 0) == INTERRUPTED:
            raise KeyboardInterrupt from error
        raise
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    if code and not was_ended:
        raise TrialError(f"the command failed (exit code {code}): nothing was changed yet")
    return changes, [*files.values()]


class _Tester:
    """Compares changes with the original, of which it keeps the losses."""

    def __init__(self, command: Sequence[str], seconds: float, progress: Any) -> None:
        self._command, self._seconds, self._progress = command, seconds, progress
        _, losses = self._compare({ORIGINAL: {}, OTHER_SEED: {}}, seconds=1.0)
        self._copy, self._other_seed = losses[ORIGINAL], losses[OTHER_SEED]

    def measure(self, changes: Sequence[Change]) -> Result:
        """Compare the original with the one to which these changes were made."""
        together = changes[0]
        if len(changes) > 1:
            code = " + ".join(change.name for change in changes)
            together = Change(TOGETHER, {}, code, "")
        arguments = {change.name: change.arguments for change in changes}
        try:
            comparison, losses = self._compare({ORIGINAL: {}, together.name: arguments})
        except CompareError as error:
            return Result(together, failure=str(error))
        changed = losses[together.name]
        if missing := {*arguments} - changed.applied:
            listed = ", ".join(sorted(missing))
            return Result(together, failure=f"nothing was found to change for {listed}")
        rounding = max(ROUNDING.get(name, OTHER_ROUNDING) for name in arguments)
        is_same, why = judge(
            changed,
            losses[ORIGINAL],
            copy=self._copy,
            other_seed=self._other_seed,
            rounding=rounding,
        )
        return Result(together, comparison, is_same, why)

    def _compare(
        self, sides: dict[str, dict[str, Any]], seconds: float | None = None
    ) -> tuple[Comparison, dict[str, Losses]]:
        losses = {name: Losses() for name in sides}
        plans = {
            name: {"trial": {"changes": changes, "seed": int(name == OTHER_SEED)}}
            for name, changes in sides.items()
        }
        comparison = compare(
            dict.fromkeys(sides, self._command),
            seconds=seconds or self._seconds,
            plans=plans,
            on_report=lambda name, report: losses[name].add(report),
            progress=self._progress,
        )
        return comparison, losses


@contextmanager
def _apart() -> Iterator[None]:
    """Let trackers of experiments and the compiler use only a temporary folder, in the block."""
    before = dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="trainspeed-", ignore_cleanup_errors=True) as folder:
        os.environ.update(OFFLINE | dict.fromkeys(OFFLINE_FOLDERS, folder))
        os.environ.update(NO_HEADERS | dict.fromkeys(COMPILER_FOLDERS, f"{folder}/.cache"))
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)


# The command `trainspeed try`.


def add_try(commands: argparse._SubParsersAction) -> None:
    """Add `trainspeed try`."""
    parser = commands.add_parser(
        "try",
        help="measure which changes speed up a training command, without editing it",
        usage="trainspeed try [options] -- COMMAND",
    )
    parser.add_argument("--seconds", type=float, default=SECONDS, help="to measure each change")
    parser.add_argument("--json", action="store_true", help="print values instead of the table")
    parser.add_argument("--yes", action="store_true", help="repeat a script that writes files")
    parser.set_defaults(run=run_try)


def run_try(options: argparse.Namespace, command: list[str]) -> int:
    """Try changes, print a table, and return the exit code."""

    def may_repeat(files: list[dict[str, str]]) -> bool:
        if options.yes or not files:
            return True
        if not sys.stdin.isatty():
            return False
        for file in files[:5]:
            print(f"{file['path']}  ({file['line']})", file=sys.stderr)
        print("The script writes these files. Repeat it several times? [y/N] ", file=sys.stderr)
        return input().strip().lower() in ("y", "yes")

    def announce(changes: list[Change]) -> None:
        names = ", ".join(change.name for change in changes)
        if names:
            print(f"It fits the profile to try: {names}.", file=sys.stderr, flush=True)

    def show(result: Result) -> None:
        if not options.json:
            print(text_of(result), flush=True)

    try:
        with ended_by_signals():
            results = try_changes(
                command,
                seconds=options.seconds,
                may_repeat=may_repeat,
                on_changes=announce,
                on_result=show,
            )
    except KeyboardInterrupt:
        return 130
    if options.json:
        print(json.dumps([result.to_dict() for result in results], indent=1))
    elif not results:
        print("No change that is known here fits the profile.")
    return 0


def text_of(result: Result) -> str:
    """Return a result as lines of a table."""
    change, comparison = result.change, result.comparison
    if comparison is None:
        return f"{change.name:16} failed: {result.failure}"
    name = [*comparison.ratios][-1] if comparison.ratios else ""
    noise = comparison.noise(name)
    speed = f"too noisy to judge: {noise}" if noise else str(comparison.ratio)
    same = {True: "yes", False: "NO", None: "unknown"}[result.is_same]
    lines = [f"{change.name:16} {speed:24} same training: {same}: {result.training}"]
    lines.append(f"{'':16} → {change.code}{f'  ({change.line})' if change.line else ''}")
    return "\n".join(lines)
