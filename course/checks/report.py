"""Report what a rung changed: pictures, numbers and sentences, all from records."""

from __future__ import annotations

import difflib
import html
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from course import charts
from course.analysis.mfu import mfu
from course.charts.tables import BAD, GOOD, MUTED, as_html
from course.checks import discovery
from course.checks.exercises import open_todos, original_of
from course.checks.predictions import key_of, prediction, settle, site_of, verdict
from course.checks.store import NOISY
from course.checks.todo import needed_todos
from course.config import Config, all_settings
from course.jobs.launch import JobError, refresh
from course.runs.ratio import (
    Ratio,
    explain_ratio,
    few_steps,
    idle_gpu_warning,
    pair,
    ratio,
    ratio_of_pair,
)
from course.runs.record import Record
from course.runs.run import Run
from course.runs.scripts import is_same_code
from course.text import digits


@dataclass(frozen=True)
class Report:
    """A run next to another: `table` has the numbers, `sentences` explain them."""

    table: pd.DataFrame
    sentences: tuple[str, ...]
    picture: charts.Picture

    def __repr__(self) -> str:
        return "\n".join([self.table.to_string(), "", *self.sentences])

    def _repr_html_(self) -> str:
        items = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in self.sentences)
        return f"{self.picture._repr_html_()}{as_html(self.table)}<ul>{items}</ul>"


@dataclass(frozen=True)
class Comparison:
    """The differences of two runs: settings, lines of the script, and speed."""

    settings: pd.DataFrame
    source_diff: str
    ratio: Ratio | None
    names: tuple[str, str]

    def __repr__(self) -> str:
        settings = self.settings.to_string() if len(self.settings) else "the same settings"
        return f"{settings}\n\n{self.source_diff or 'the same script'}\n\n{self._speed()}"

    def _speed(self) -> str:
        noise = self.ratio.noise() if self.ratio else ""
        shown = f"{self.ratio or 'not measured'}" + f"; {NOISY}: {noise}" * bool(noise)
        return f"{self.names[1]} ÷ {self.names[0]}: {shown}"

    def _repr_html_(self) -> str:
        diff = _coloured(self.source_diff) if self.source_diff else ""
        settings = as_html(self.settings) if len(self.settings) else "<p>the same settings</p>"
        speed = html.escape(self._speed())
        return f"{settings}{diff or '<p>the same script</p>'}<p><b>{speed}</b></p>"


DIFF_STYLES = {"+++": MUTED, "---": MUTED, "@@": MUTED, "+": GOOD, "-": BAD}


def _coloured(diff: str) -> str:
    """Return a diff as HTML: added lines green, removed ones orange, positions grey."""
    lines = []
    for line in diff.splitlines():
        style = next((style for sign, style in DIFF_STYLES.items() if line.startswith(sign)), "")
        lines.append(f'<span style="{style}">{html.escape(line)}</span>')
    return "<pre>" + "\n".join(lines) + "</pre>"


def report(run: Run, *, against: Run | None = None, predicted: float | None = None) -> Report:
    """Report what a run measured, next to another run and to what you predicted.

    Args:
        against: the run to compare with, such as your baseline.
        predicted: the ratio of images/s to `against` that you expected; by default, the one that
            `predict` stored for this rung.

    Raises:
        JobError: a run that is not over or not ok; the message has its error and its logs.
    """
    compared = pair(run, against) if against else None
    both = [compared[1], run] if compared else [run]
    records = [_measured(member) for member in both]
    names = _names(both)
    picture = charts.plot_step_and_loss(
        [(n, rec, r.steps) for n, rec, r in zip(names, records, both)]
    )
    speedup = ratio_of_pair(*compared) if compared else None
    _save(picture, run)
    sentences = tuple(_sentences(run, against, records, speedup))
    if speedup is not None:
        sentences += tuple(_judged(run, against, speedup, predicted))
    sentences += tuple(f"{name} ended early: turns count up to there." for name in run.record.left)
    return Report(_numbers(names, records, both), sentences, picture)


def compare(a: Run, b: Run) -> Comparison:
    """Compare two runs: settings, source (as a diff), and the ratio of speeds.

    The script of a recorded run is not kept: only its settings are compared, and if it was a
    variant of the script, the added lines are shown.
    """
    left, right = all_settings(a.config), all_settings(b.config)
    names = tuple(_names([a, b]))
    differing = {key: (left[key], right[key]) for key in left if left[key] != right[key]}
    settings = pd.DataFrame.from_dict(differing, orient="index", columns=list(names))
    if a.is_recorded or b.is_recorded:
        diff = ["no script is kept of a recorded run: it was the solution of its day"]
        for name, member in zip(names, (a, b)):
            added = member.launched.get("added", {})
            diff += [f"added in {name}:"] * bool(added)
            for line, new in added.items():
                diff += [f" {line}", *(f"+{text}" for text in new.split("\n"))]
    else:
        texts = [member.script.read_text().splitlines() for member in (a, b)]
        diff = difflib.unified_diff(*texts, *names, lineterm="")
    measured = all(refresh(r) == "ok" and r.record.images_per_s for r in (a, b))
    return Comparison(settings, "\n".join(diff), ratio(b, a) if measured else None, names)


def ladder_table(runs: Sequence[Run], same_as: Mapping[str, str] | None = None) -> pd.DataFrame:
    """Return the measured ladder: one row per run, with its ratio to the first run that is ok.

    Args:
        same_as: rungs that did not run, because they compute the same as another rung on this
            machine, by that rung. Each gets its row, with that rung in the column `same_as`.
    """
    rows, first = [], None
    for run in runs:
        status, record = refresh(run), run.record or Record("lost")
        ok = status == "ok" and record.images_per_s is not None
        first = first or (run if ok else None)
        speedup = ratio(run, first) if ok else Ratio(float("nan"))
        rows.append(
            {
                "rung": run.config.rung,
                "status": status,
                "images_per_s": record.images_per_s,
                "images_per_s_q1": record.images_per_s_q1,
                "images_per_s_q3": record.images_per_s_q3,
                "ratio": speedup.value,
                "ratio_low": speedup.low,
                "ratio_high": speedup.high,
                "turns": speedup.turns,
                "noise": speedup.noise() if ok and run != first else few_steps(run) if ok else "",
                "peak_gib": record.peak_gib,
                "last_loss": record.last_loss,
                "val_top1": record.val_top1,
                "machine": record.machine,
                "setup": run.config.setup,
                "tokens": run.config.tokens,  # of a sequence; images_per_s are sequences then
                "emulated": _emulated(record, run.config),
                "same_as": "",
                "lacks_half": run.lacks_half,
                "open_todos": still_open(run),
                "run": run.name,
            }
        )
    measured = {row["rung"]: row for row in rows}
    for rung, other in reversed((same_as or {}).items()):
        copy = measured[other] | {"rung": rung, "same_as": other}
        rows.insert(rows.index(measured[other]) + 1, copy)
    return pd.DataFrame(rows)


def _measured(run: Run) -> Record:
    record = run.record if refresh(run) == "ok" else None
    if record is None:
        raise JobError(run.explain())
    if record.images_per_s is None:
        raise JobError(f"{run.name} is ok, but not measured: {record.not_measured or 'no step'}")
    return record


def _emulated(record: Record, config: Config) -> str:
    """Return the 16-bit format that software emulated in this run; "" if the device has it."""
    has = record.hardware.get("half_units", [])
    return config.precision if config.is_half and config.precision not in has else ""


def _predicted(run: Run) -> float | None:
    stored = prediction(key_of(run), site_of(run))
    # An answer to a question may have the name of a rung as its key.
    is_of_runs = stored is not None and stored.rung and not isinstance(stored.value, str)
    return stored.value if is_of_runs else None


def _names(runs: Sequence[Run]) -> list[str]:
    rungs = [run.config.rung for run in runs]
    names = rungs
    if len(set(names)) < len(runs):
        names = [
            f"{run.config.rung} on {run.launched.get('gpus', 1)}"
            + f", {run.config.hosts} simulated hosts" * (run.config.hosts > 1)
            for run in runs
        ]
    if len(set(names)) < len(runs):
        names = [run.name for run in runs]
    return [
        name + f" (recorded, {run.recorded_on})" * run.is_recorded for name, run in zip(names, runs)
    ]


def _numbers(names: Sequence[str], records: Sequence[Record], runs: Sequence[Run]) -> pd.DataFrame:
    last = min(len(run.steps) for run in runs) - 1  # in turns, one run may end earlier
    return pd.DataFrame(
        {
            name: {
                f"{run.config.unit}/s (median)": _speed(run, r.images_per_s),
                f"{run.config.unit}/s (quartiles)": "–"
                if few_steps(run)
                else f"{_speed(run, r.images_per_s_q1)} to {_speed(run, r.images_per_s_q3)}",
                f"peak GiB ({r.memory_kind})": f"{r.peak_gib:.2f}"
                if r.peak_gib is not None
                else "–",
                f"loss, step 0 to {last}": " to ".join(_loss_at(run, step) for step in (0, last)),
                **_validation(r),
                "steps, and of these measured": f"{len(run.steps)}, {r.steps_measured}",
                "data": r.data,
                "machine": r.machine,
                **({"MFU, of the GPU's peak": f"{share:.1%}"} if (share := mfu(run)) else {}),
            }
            for name, r, run in zip(names, records, runs)
        }
    ).fillna("–")


def _speed(run: Run, images_per_s: float) -> str:
    """Return a speed in what the run's script counts: images or tokens per second."""
    return digits(images_per_s * (run.config.tokens or 1))


def _validation(record: Record) -> dict[str, str]:
    if record.val_top1 is None and record.val_loss is not None:
        return {"validation loss": f"{record.val_loss:.3f}"}
    return {"validation top-1": f"{record.val_top1:.1%}" if record.val_top1 is not None else "–"}


def _sentences(
    run: Run, against: Run | None, records: Sequence[Record], speedup: Ratio | None
) -> Iterator[str]:
    record, config, unfilled = records[-1], run.config, still_open(run)
    if speedup is not None:
        yield from _speed_sentences(run, against, records, speedup)
    elif reason := few_steps(run):
        yield f"The speed is {NOISY}: {reason}."
    for name in unfilled:
        yield f"TODO {name} is still open in this run's script, so it changed nothing."
    if config.device == "auto" and record.device == "cpu" and "device" not in unfilled:
        yield "No accelerator was used: this ran on the CPU."
    is_unscaled = run.requested_config.precision == "half" and config.precision == "fp32"
    if is_unscaled and not run.lacks_half:
        yield "fp16 needs loss scaling, which this script does not do: it computed in fp32."
    if run.lacks_half and "amp" not in unfilled:
        yield f"{record.machine} has no 16-bit hardware, so this run computed in fp32."
    if (emulated := _emulated(record, config)) and "amp" not in unfilled:
        yield (
            f"{record.machine} has no instructions for {emulated}: software emulates the format, "
            f"and that is slow."
        )
    if reason := idle_gpu_warning(run, against):
        yield f"Mind that {reason}."
    if record.last_loss is None:
        yield "The loss is not finite any more: this run learns nothing, so its speed says nothing."


def _speed_sentences(
    run: Run, against: Run, records: Sequence[Record], speedup: Ratio
) -> Iterator[str]:
    these = [entry.rung for entry in (records[-1], records[0])]
    if records[-1].gpus != records[0].gpus:
        these = [f"{entry.rung} on {entry.gpus}" for entry in (records[-1], records[0])]
    yield f"{' against '.join(these)}: {speedup} the {run.config.unit} per second."
    yield explain_ratio(speedup, run)
    if is_same_computation(run, against):
        yield "The same computation: the true ratio is 1."
    elif reason := speedup.noise():
        yield f"Which is faster is {NOISY}: {reason}."


def describe_speedup(run: Run, against: Run) -> list[str]:
    """Return sentences about a run's speed next to another's, or why there is no ratio."""
    for member in (run, against):
        if refresh(member) != "ok":
            return [f"No ratio: {member.name} is {member.status}."]
        if member.record.images_per_s is None:
            why = member.record.not_measured or "no step"
            return [f"No ratio: {member.name} is not measured: {why}."]
    if run.config.unit != against.config.unit:
        counts = f"{run.name} counts {run.config.unit}, {against.name} {against.config.unit}"
        return [f"No ratio: {counts}."]
    compared = pair(run, against)
    records = [compared[1].record, run.record]
    return [*_speed_sentences(run, against, records, ratio_of_pair(*compared))]


def _judged(run: Run, against: Run, speedup: Ratio, predicted: float | None) -> Iterator[str]:
    """Yield the verdict on the predicted ratio; store the result with a stored prediction."""
    # A rung's stored prediction is about one process.
    stored = _predicted(run) if run.gpus == 1 else None
    stored = stored if predicted is None else predicted
    how = "Measured"
    if is_same_computation(run, against):
        speedup, how = Ratio(1.0), "True"
    if stored is None:
        return
    if predicted is None and not speedup.too_few:
        settle(key_of(run), speedup.value, site_of(run))
    spread = {"low": speedup.low, "high": speedup.high, "noise": speedup.too_few}
    yield str(verdict(stored, speedup.value, **spread, detail="times as fast", how=how))


def is_same_computation(run: Run, against: Run) -> bool:
    """Return whether two runs compute the same on the same device: neither can be faster."""
    configs = [replace(member.config, rung="same", device="auto") for member in (run, against)]
    places = [
        (member.record.device, member.record.machine, member.record.versions, member.gpus)
        for member in (run, against)
    ]
    return configs[0] == configs[1] and places[0] == places[1] and _have_same_code(run, against)


def _have_same_code(run: Run, against: Run) -> bool:
    if run.is_recorded or against.is_recorded:  # no script is kept of these
        origins = [
            (member.launched.get("added"), member.record.git_sha, member.is_recorded)
            for member in (run, against)
        ]
        return origins[0] == origins[1]
    return is_same_code(*(member.script.read_text() for member in (run, against)))


def still_open(run: Run) -> list[str]:
    """Return the exercises that this run's config needs and that are open in its snapshot."""
    unfilled = open_todos(run.script.read_text(), original_of(run.source))
    return [name for name in discovery.exercises() if name in needed_todos(run) & unfilled]


def _loss_at(run: Run, step: int) -> str:
    value = run.steps.set_index("step")["loss"].astype(float).get(step, math.nan)
    return f"{value:.3f}" if math.isfinite(value) else "not finite"


def _save(picture: charts.Picture, run: Run) -> None:
    try:  # a learner cannot write to a recorded run
        if run.is_mine and not run.is_recorded:
            picture.savefig(run.folder / "report.png")
    except OSError as error:
        print(f"the picture is shown but could not be saved: {error}")
