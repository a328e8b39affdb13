"""Checks of TODOs, each in three parts with their evidence.

correct    the script trains like the solution, in small runs of both on the CPU
mechanism  the run itself did what the TODO adds, as its recorded evidence shows
effect     the run is faster: the ratio of throughputs, judged by its interval

An effect that this machine cannot show is "not measurable here", and one whose interval does not
tell faster from slower is "too noisy to judge". Neither counts as passed or failed.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from course.charts.tables import BAD, GOOD, MUTED
from course.checks import discovery
from course.checks.compare import Comparison, compare
from course.checks.exercises import (
    SOLUTIONS,
    digest,
    exercise_of,
    open_todos,
    read,
    seams,
    solution_of,
)
from course.checks.facts import describe, incompleteness
from course.checks.lab import Exercise, Place, Unexpected, expect
from course.checks.shared_progress import save_check
from course.checks.store import FAILED, NOISY, PARTS, PASSED, UNMEASURABLE, UNTIMED
from course.config import Config, rung
from course.jobs import sites
from course.jobs.launch import launch, launch_all, refresh, wait
from course.jobs.plan import check_syntax, device_for, find_script
from course.runs import failures, trust
from course.runs.ratio import SURE, Ratio, idle_gpu_warning, ratio, why_not
from course.runs.run import Run
from course.text import read_utf8

# Sizes of quick checks: FASTER if only the sign of the effect matters, SMALL where speeds on this
# machine mean nothing. (In fp16 that software emulates, a step of the large network takes minutes.)
FASTER = {"budget_s": 5.0, "val_steps": 1}
SMALL = {"model": "resnet18", "image_px": 48, "lr": 0.0003}
SMALL |= {"batch_size": 4, "steps": 6, "val_steps": 1, "budget_s": 0.0}


@dataclass(frozen=True)
class Part:
    """One part's verdict, the evidence in a line and, if it failed, the place to look at."""

    part: str
    verdict: str
    evidence: str
    look_at: str = ""


NOT_CORRECT = [Part(part, UNMEASURABLE, "the training must be correct first") for part in PARTS[1:]]


@dataclass(frozen=True)
class Checked:
    """A check's three parts."""

    name: str
    title: str
    parts: tuple[Part, ...]

    @property
    def passed(self) -> bool:
        return all(part.verdict in (PASSED, UNTIMED) for part in self.parts)

    @property
    def failed(self) -> bool:
        """Whether a part failed; not measurable is neither passed nor failed."""
        return any(part.verdict == FAILED for part in self.parts)

    def __repr__(self) -> str:
        lines = [f"{self.name}: {self.title}"]
        for part in self.parts:
            lines.append(f"  {part.part:10}{part.verdict:21}{part.evidence}")
            if part.look_at:
                lines.append(f"  {'':31}→ {part.look_at}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        styles = {PASSED: GOOD, FAILED: BAD}
        signs = {PASSED: "✓", FAILED: "✗", UNMEASURABLE: "?", NOISY: "?", UNTIMED: "–"}
        rows = "".join(
            f"<tr><td style='text-align:left'><b>{part.part}</b></td>"
            f"<td style='text-align:left; {styles.get(part.verdict, MUTED)}'>"
            f"{signs[part.verdict]}&nbsp;{part.verdict}</td><td style='text-align:left'>"
            f"{html.escape(part.evidence)}<br>{html.escape(part.look_at)}</td></tr>"
            for part in self.parts
        )
        heading = f"<b>{html.escape(self.name)}</b>: {html.escape(self.title)}"
        return f"<p>{heading}</p><table>{rows}</table>"


def check(
    name: str,
    run: Run | None = None,
    *,
    against: Run | None = None,
    script: str = "",
    site: str = "local",
    quick: bool = True,
    rerun: bool = False,
) -> Checked:
    """Compare your script with the solution, and its run with the previous step's.

    If the exercise is still open, the result says so at once: nothing is launched or stored. If
    the script does not train like the solution, nothing is launched, either.

    Args:
        name: a name that `progress()` lists, such as "amp".
        run, against: existing runs of your script and of the previous step. A missing one is
            launched, that of the previous step only if the check compares their speed.
        script: by default, the one in exercises/ that has it.
        rerun: launch the runs again even if they exist.

    Raises:
        ValueError: an unknown name (the message lists the known ones), or a syntax error in the
            script.
    """
    wanted = _find(name)
    script = script or exercise_of(wanted.name)
    if run is None and (where := _open_place(wanted, script, site)):
        return Checked(name, wanted.title, tuple(_open_parts(wanted, where)))
    _comparison.cache_clear()
    if run is None and sites.get(site).executor != "recorded":
        trust.check([path := find_script(script)])
        check_syntax(text := read_utf8(path), script)
        source = "/".join(path.parts[-2:])
        correct = _correct(wanted, text, source, _where(text, source, wanted), is_recorded=False)
        if correct.verdict == FAILED:  # no run can change that
            return _saved(wanted, text, (correct, *NOT_CORRECT))
    options = {"script": script, "site": site, "quick": quick, "rerun": rerun}
    run, against = _runs(wanted, run, against, needs_both=wanted.timed, **options)
    _finish(against, run)
    if wanted.emulated and run.lacks_half and not run.is_recorded:  # such a run proves nothing
        script, site = run.launched["script"], run.launched["site"]
        options = {"script": script, "site": site, "quick": quick, "rerun": rerun}
        run, against = _runs(wanted, None, None, **options, emulates=True)
        _finish(against, run)
    if run.is_recorded:  # of the solution, so it does not count as the learner's progress
        parts = tuple(_parts(wanted, run, against, read(script), script))
        return Checked(name, f"{wanted.title}; the run is {run.record.machine}", parts)
    text = run.script.read_text()
    return _saved(wanted, text, tuple(_parts(wanted, run, against, text, run.source)))


def _saved(wanted: Exercise, text: str, parts: tuple[Part, ...]) -> Checked:
    verdicts = {part.part: part.verdict for part in parts} | {"script": digest(text)}
    save_check(wanted.name, verdicts, parts)
    return Checked(wanted.name, wanted.title, parts)


def _open_place(wanted: Exercise, script: str, site: str) -> str:
    """Return where an exercise is still open in a script; "" if it is not, or runs are recorded.

    Raises:
        ValueError: a syntax error in the script.
    """
    text = read_utf8(find_script(script))
    is_open = wanted.name in open_todos(text, solution_of(wanted.name))
    if not is_open or sites.get(site).executor == "recorded":
        return ""
    check_syntax(text, script)
    return _where(text, script, wanted)


def _open_parts(wanted: Exercise, where: str) -> Iterator[Part]:
    still_open = f"TODO {wanted.name} is still open, so nothing was launched"
    yield Part("correct", UNMEASURABLE, still_open)
    yield Part("mechanism", FAILED, "fill it in, save the file, and check again", where)
    yield Part("effect", UNMEASURABLE, "the mechanism must work first")


def _finish(*runs: Run | None) -> None:
    wait([run for run in runs if run and refresh(run) in ("queued", "running")], check=False)


def launch_check(
    name: str, *, script: str = "", site: str = "local", quick: bool = True
) -> tuple[Run, Run]:
    """Launch a check's runs without waiting; `check` with the same arguments reuses them.

    On this machine, unless the two runs take turns, the previous step's run is completed first:
    otherwise they would compete for the cores. If the exercise is still open, a line says so; the
    runs are launched all the same, because a notebook's next cells show them.

    Returns:
        The run, and the run of the previous step.

    Raises:
        ValueError: an unknown name; the message lists the known ones.
    """
    wanted = _find(name)
    script = script or exercise_of(wanted.name)
    if where := _open_place(wanted, script, site):
        print(f"TODO {name} is still open. Fill it in, save the file, run this cell again: {where}")
    before, _, is_timed = _configs(wanted, site, quick=quick, small=True)
    if not is_timed and sites.get(site).executor == "local":
        wait([launch(script, before, site=site)], check=False)
    return _runs(wanted, None, None, script=script, site=site, quick=quick, rerun=False)


def _runs(
    wanted: Exercise,
    run: Run | None,
    against: Run | None,
    *,
    script: str,
    site: str,
    quick: bool,
    rerun: bool,
    emulates: bool = False,
    needs_both: bool = True,
) -> tuple[Run, Run | None]:
    """Return the run and the previous step's; launch those that are missing, in turns.

    Args:
        needs_both: False to launch nothing for the previous step, which may then be None.
    """
    if run is not None and against is not None:
        return run, against
    both = run is None and against is None
    before, config, is_timed = _configs(wanted, site, quick=quick, small=both, emulates=emulates)
    if is_timed and both and wanted.gpus == 1:
        against, run = launch_all(script, [before, config], turns=True, site=site, rerun=rerun)
        return run, against
    if against is None and needs_both:
        against = launch(script, before, site=site, rerun=rerun)
    if run is None:
        beside = against if is_timed else None
        run = launch(script, config, site=site, gpus=wanted.gpus, against=beside, rerun=rerun)
    return run, against


def _configs(
    wanted: Exercise, site: str, *, quick: bool, small: bool, emulates: bool = False
) -> tuple[Config, Config, bool]:
    """Return the configs of the previous step and of the run, and whether to compare their times.

    Args:
        small: allow small sizes, if the check launches both runs.
        emulates: use a format that the site has no hardware for, only to check that it is used.
    """
    settings = wanted.settings | ({} if quick else wanted.full_size)
    if wanted.gpus > 1:
        settings["device"] = device_for(wanted.gpus, site)
    config = rung(wanted.rung, quick=quick, **settings | wanted.changes)
    place = _place(config, site)
    emulates = emulates or not place.half_units
    is_timed = (
        wanted.timed and not wanted.obstacle(config, place) and not (emulates and wanted.emulated)
    )
    changes = wanted.changes | (wanted.emulated if emulates else {})
    if quick and small and wanted.gpus == 1:
        sizes = SMALL if not is_timed else FASTER if wanted.faster else {}
        settings = {name: x for name, x in sizes.items() if config.has(name, x)} | settings
    before = rung(wanted.against, quick=quick, **settings)
    return before, rung(wanted.rung, quick=quick, **settings | changes), is_timed


def _place(config: Config, site: str) -> Place:
    """Return where a config would compute, as far as this process knows."""
    from course.training.precision import HALF, default_device, has_units

    if sites.get(site).executor != "local":
        return Place("unknown", tuple(HALF), site)
    device = default_device(config)
    return Place(device.type, tuple(name for name in HALF if has_units(device, name)), site)


def _find(name: str) -> Exercise:
    known = discovery.exercises()
    if name not in known:
        raise ValueError(f"no check {name!r}: there are {', '.join(known)}")
    return known[name]


def _parts(
    wanted: Exercise, run: Run, against: Run | None, text: str, source: str
) -> Iterator[Part]:
    """Yield the verdicts on a script's text and on its run.

    Args:
        source: the script's path, from the project's root.
    """
    where = _where(text, source, wanted)
    ended = next((one for one in (against, run) if one and refresh(one) != "ok"), None)
    is_open = wanted.name in open_todos(text, solution_of(wanted.name))
    if is_open and not ended:
        why = f"TODO {wanted.name} is still open in {source}"
        why += "; the recorded run is the solution's" * run.is_recorded
        correct = Part("correct", UNMEASURABLE, why)
    else:
        correct = _correct(wanted, text, source, where, is_recorded=run.is_recorded)
    if ended and correct.verdict != FAILED:
        look_at = _error_line(ended, text, where)
        correct = Part("correct", FAILED, ended.explain().splitlines()[0], look_at)
    yield correct
    if correct.verdict == FAILED:
        yield from NOT_CORRECT
        return
    try:
        is_missing = is_open and not run.is_recorded
        expect(not is_missing, f"TODO {wanted.name} is still open in this run's script")
        evidence = run.evidence(run.gpus - 1)
        reason = incompleteness(evidence)
        expect(run.is_recorded or not reason, reason)
        is_observed = evidence.is_observed or run.config.compile or run.gpus > 1
        expect(is_observed, "the first step was not observed: launch with warmup_steps=1")
        words = [wanted.describe(run), describe(run, wanted.shows)]
        yield Part("mechanism", PASSED, "; ".join(filter(None, words)))
    except Unexpected as error:
        yield Part("mechanism", FAILED, str(error), _line_of(text, source, str(error)) or where)
        yield Part("effect", UNMEASURABLE, "the mechanism must work first")
        return
    if not wanted.timed:
        yield Part("effect", UNTIMED, "this check does not measure speed")
        return
    yield _effect(wanted, run, against)


def _correct(wanted: Exercise, text: str, source: str, where: str, *, is_recorded: bool) -> Part:
    """Compare a script with the solution, in small runs on this machine's CPU."""
    comparison = _comparison(wanted.name, text)
    if comparison.error:
        return Part("correct", UNMEASURABLE, comparison.error)
    mine = f"your {source} on this machine's CPU: " * is_recorded
    if comparison.difference:
        look_at = _line_of(text, source, comparison.difference) or where
        return Part("correct", FAILED, mine + comparison.difference, look_at)
    return Part("correct", PASSED, mine + comparison.compared)


@lru_cache(maxsize=1)
def _comparison(name: str, text: str) -> Comparison:
    """Compare a script once in a check, before its runs are launched."""
    (comparison,) = compare([(_find(name), text)])
    if comparison.printed:
        print(comparison.printed)
    return comparison


def _effect(wanted: Exercise, run: Run, against: Run) -> Part:
    units = tuple(run.record.hardware.get("half_units", ()))
    if reason := wanted.obstacle(run.config, Place(run.record.device, units, run.record.machine)):
        return Part("effect", UNMEASURABLE, reason)
    speedup, reason = ratio(run, against), idle_gpu_warning(run, against)
    part = judge(speedup, faster=wanted.faster, why="" if speedup.turns else why_not(run))
    if part.verdict == PASSED or not reason:
        return part
    return Part("effect", UNMEASURABLE, f"{speedup} as fast; but {reason}")


def judge(speedup: Ratio, *, faster: bool, why: str = "") -> Part:
    """Judge the effect by its interval: passed if it is above 1, failed if it is below.

    An interval with both, and one of too few steps or turns, is too noisy to judge.

    Args:
        faster: False for a TODO that must cost nothing: the limit is then 1 − SURE.
        why: why the runs took no turns.
    """
    line = 1 if faster else 1 - SURE
    how = f"in {speedup.turns} turns" if speedup.turns else "one run after the other"
    how += f" ({why})" * bool(why)
    evidence = f"{speedup} as fast, {how}"
    if speedup.low is None:
        return Part("effect", UNMEASURABLE, f"{evidence}: no steps were kept")
    if reason := speedup.noise(line):
        return Part("effect", NOISY, f"{evidence}: {reason}")
    if speedup.low > line:
        return Part("effect", PASSED, evidence)
    if speedup.high < line:
        return Part("effect", FAILED, f"{evidence}: slower")
    return Part("effect", UNMEASURABLE, f"{evidence}: no effect that can be measured")


def _where(text: str, source: str, wanted: Exercise) -> str:
    """Return the lines of the script to look at: the TODO's comments, else lines of its seams."""
    solution = (SOLUTIONS / solution_of(wanted.name)).read_text()
    parts = seams(solution, exercise=wanted.name)
    code = {line.strip() for seam in parts for line in (*seam.solution, *seam.before)} - {""}
    lines = dict(enumerate(text.splitlines(), 1))
    marked = [at for at, line in lines.items() if re.search(rf"# TODO {wanted.name}\b", line)]
    numbers = marked or [at for at, line in lines.items() if line.strip() in code]
    if not numbers:
        return (
            f"{source} has no line of TODO {wanted.name}: "
            f"course exercises --upto {wanted.name} shows where"
        )
    more = f" (also line {', '.join(map(str, numbers[1:]))})" if numbers[1:] else ""
    return f"{source}, line {numbers[0]}: {lines[numbers[0]].strip()}{more}"


def _error_line(run: Run, text: str, otherwise: str) -> str:
    """Return the line that failed; "" if the cause is not in the script."""
    error = run.record.error if run.record else ""
    return "" if failures.fault_of(error) else _line_of(text, run.source, error) or otherwise


def _line_of(text: str, source: str, message: str) -> str:
    """Return the script's line that a message names by its number or by a call, `NAME(…)`."""
    lines = text.splitlines()
    place = re.search(r"train\w*\.py, line (\d+)", message)
    call = re.search(r"`([\w.]+\()…\)`", message)
    number = int(place[1]) if place else 0
    if call and not place:
        number = next((at for at, line in enumerate(lines, 1) if call[1] in line), 0)
    return f"{source}, line {number}: {lines[number - 1].strip()}" if number else ""
