"""Write what follows from recorded runs and from the labs: tables of README and docs, links.

    python -m tools.pages [--check] [--labs]

A table has a head, a format string for its rows, and two marker lines in a page.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import string
import sys
import tomllib
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from math import nan
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from PIL import Image

from course.analysis.roofline import fusion_traffic, operators, points, recorded_ceilings
from course.checks import discovery
from course.checks.lab import Lab
from course.config import RUNGS, from_dict, rung
from course.runs import recordings
from course.runs.record import Record
from course.runs.run import PROJECT, Run
from course.text import digits
from labs.dataloader import loading
from labs.memory import peaks
from labs.scaling import efficiency
from race import board, tracks
from race.page import published_results
from tools import lab_links
from tools.lab_links import link
from trainspeed import tensor_cores
from trainspeed.traces import tables as traces

# By rung and precision.
LABS_BY_RUNG = {key: link(lab.name) for lab in discovery.labs() for key in lab.rungs}
SCALED = {  # each rung's lab
    "channels_last": "scaling",
    "compile": "scaling",
    "algebra": "fast_step",
}
DECODERS = {"raw": "none", "gpu_decode": "the GPU"}  # with other formats, workers decode
DAYS = {  # by the first part of the notebooks' names, in order: its name, and for whom it is
    "day0": ("0: the machine", "you've never submitted a job to Slurm, or measured energy"),
    "day1": ("1: one GPU", "you train on a GPU: everyone begins here"),
    "day2": (
        "2: data and compiler",
        "your GPU waits for data, or you want to know what a compiler does",
    ),
    "day3": ("3: many GPUs", "you have more than one GPU, or search for hyperparameters"),
    "day4": (
        "4: large networks",
        "your network doesn't fit on one GPU, or trains for longer than a job may run",
    ),
    "race": ("race", "you've finished Day 1, and want to use all of it at once"),
    "lab": ("electives", "one topic interests you; each names the labs that it needs"),
}
REHEARSAL = PROJECT / "benchmarks" / "rehearsal_2_cores.jsonl"
PICTURE = PROJECT / "docs" / "ladder-nvidia-h100.png"
DIGEST = "Data"  # the PNG field with a digest of what was drawn


class Formatter(string.Formatter):
    """Format strings that support `!d`: three significant digits, no exponent."""

    def convert_field(self, value: Any, conversion: str | None) -> Any:
        return digits(value) if conversion == "d" else super().convert_field(value, conversion)


def markdown(head: str, row: str, rows: Iterable[dict], *notes: str) -> str:
    """Return a table: its head, and the row formatted for each dict. NaN cells become dashes."""
    lines = [Formatter().vformat(row, (), values) for values in rows]
    lines = [re.sub(r"(?<=\| )\+?nan%?( \(nan to nan\))?(?= \|)", "–", line) for line in lines]
    rule = f"|{'---|' * (head.count('|') - 1)}"
    return "\n".join([head, rule, *lines, *(f"\n{note}" for note in notes), ""])


def ladders(machine: str) -> dict[str, dict[tuple[str, str], Record]]:
    """Return the rungs of the ladder as recorded in `recordings.SETUP`, by device.

    Returns:
        "GPU" and "CPU", each with records by rung and precision. The last of several runs counts;
        runs that measured nothing are left out.
    """
    return ladder_of(recordings.recorded_runs(machine, *recordings.FULL_BATCH))


def ladder_of(runs: Iterable[Run]) -> dict[str, dict[tuple[str, str], Record]]:
    """Return `ladders` for these runs of a machine, in the order in which they ran."""
    result: dict[str, dict[tuple[str, str], Record]] = {"GPU": {}, "CPU": {}}
    for record in (run.record for run in runs):
        config, is_rung = record.config, record.rung in RUNGS and record.gpus == 1
        if is_rung and record.images_per_s and recordings.SETUP.items() <= config.items():
            device = "CPU" if record.device == "cpu" else "GPU"
            result[device][record.rung, config["precision"]] = record
    return result


def ladder(machine: str, other: str) -> str:
    """Return the table of every rung on two machines' GPUs, and on the first one's CPU."""
    by_device, other_rungs = ladders(machine), ladders(other)["GPU"]
    cpu, rows = by_device["CPU"], []
    columns = {"gpu": (machine, by_device["GPU"]), "other": (other, other_rungs)}
    names: dict[str, dict[str, None]] = {"GPU": {}, "CPU": {}}
    for key, lab in LABS_BY_RUNG.items():
        row = {"rung": " ".join(key), "lab": lab, "peak": nan}
        row["cpu"] = _speed(cpu.get(key), cpu.get(("baseline", "fp32")))
        for prefix, (name, records) in columns.items():
            record = records.get(key)
            row[prefix] = _speed(record, records.get(("device", "fp32")))
            row |= {f"{prefix}_joules": nan, f"{prefix}_share": nan}
            if record:
                row[f"{prefix}_joules"] = record.joules_per_image or nan
                row[f"{prefix}_share"] = _tensor_core_share(record, name)
        if key in by_device["GPU"]:
            row["peak"] = by_device["GPU"][key].peak_gib
        for device, records in (("GPU", by_device["GPU"]), ("GPU", other_rungs), ("CPU", cpu)):
            if record := records.get(key):
                driver = record.versions.get("driver")
                names[device][record.machine + (f", driver {driver}" if driver else "")] = None
        rows.append(row)
    machines = ". ".join(f"{device}: {'; '.join(known)}" for device, known in names.items())
    saved = [recordings.load(name) for name in (machine, other)]
    cards = [index["machine"].split()[1].strip(",") for index in saved]
    commands = " and ".join(f"`{index['command']}`" for index in saved)
    return markdown(
        f"| rung | {cards[0]} images/s | × device | J/image | Tensor Cores | peak GiB "
        f"| {cards[1]} images/s | × device | J/image | Tensor Cores | CPU images/s | × baseline "
        f"| lab |",
        "| {rung} | {gpu} | {gpu_joules:.3f} | {gpu_share:.0%} | {peak:.1f} | {other} "
        "| {other_joules:.3f} | {other_share:.0%} | {cpu} | {lab} |",
        rows,
        f"*ResNet-50, {from_dict(recordings.SETUP).setup}; medians, ± half the distance of the "
        f"quartiles. Tensor Cores: the share of the GPU's time in which they computed; lab "
        f"{link('mixed_precision')} explains why bf16 is so close to TF32. {machines}. "
        f"Recorded by {commands}.*",
    )


def _speed(record: Record | None, first: Record | None) -> str:
    """Return two cells: images/s with half the distance of the quartiles, ratio to the first."""
    if record is None:
        return "nan | nan"
    half = (record.images_per_s_q3 - record.images_per_s_q1) / 2
    spread = f"{half:.0f}" if half >= 1 else f"{half:.1g}"
    ratio = record.images_per_s / first.images_per_s if first else nan
    return f"{digits(record.images_per_s)}\u00a0±\u00a0{spread} | {ratio:.2f}"


def _tensor_core_share(record: Record, machine: str) -> float:
    """Return the share of a traced step's GPU time in Tensor Core kernels, if one was traced."""
    name = recordings.trace_name(replace(from_dict(record.config), rung=record.rung))
    try:
        path = recordings.trace_path(machine, name)
    except ValueError:
        return nan
    report = tensor_cores.tensor_core_report(traces.read(path))
    return report["tensor_core_s"].sum() / report["gpu_s"].sum()


def files_and_gpus(one: str, several: str, network: str) -> str:
    """Return the table of one GPU that loads files, several GPUs, and simulated hosts."""
    loaded, scaled = _loaded(one), _scaled(several)
    rows = [*loaded, *scaled]
    sources = [f"Lab {link('dataloader')}: {loaded[0]['machine']}, {loaded[0]['cores']} cores"]
    sources.append(_source(several, {row["date"] for row in scaled}))
    if efficiency.NODE in recordings.machines():
        eight = efficiency.node_efficiency().to_dict("records")
        rows += [row | {"data": "synthetic", "lab": link(SCALED[row["rung"]])} for row in eight]
        sources.append(_source(efficiency.NODE, {recordings.load(efficiency.NODE)["date"]}))
    rows += _on_hosts(network)
    sources.append(_source(network, {recordings.load(network)["date"]}))
    for row in rows:
        row["card"] = row["machine"].split()[1]
        if row.get("hosts", 1) > 1:
            row["card"] += f", {row['hosts']} simulated hosts"
        row["share"] = "100%" if row["lab"] != link("dataloader") and row["gpus"] == 1 else ""
        row["share"] = row["share"] or f"{row['efficiency']:.1%}"
    return markdown(
        "| rung | data | GPUs | images/s | efficiency | W, all GPUs | J/image | lab |",
        "| {rung} | {data} | {gpus} × {card} | {images_per_s!d} | {share} | {watts:,.0f} "
        "| {joules_per_image:.3f} | {lab} |",
        rows,
        f"*ResNet-50, bf16, 224 px, 256 images a GPU and step; mean of the steps after warm-up. "
        f"Efficiency compares with as many single GPUs, on one GPU with "
        f"synthetic data. Simulated hosts: NCCL sends between them through sockets. "
        f"{'. '.join(sources)}.*",
    )


def _on_hosts(machine: str) -> list[dict]:
    """Return rows of `efficiency_table`: all GPUs, on one host and on simulated hosts."""
    runs = recordings.recorded_runs(machine, "network")
    runs = [run for run in runs if run.config.rung in ("channels_last", "compile")]
    table = efficiency.efficiency_table(runs).query("gpus == gpus.max()")
    table = table.sort_values(["rung", "hosts"])
    return [row | {"data": "synthetic", "lab": link("scaling")} for row in table.to_dict("records")]


def _loaded(machine: str) -> list[dict]:
    """Return one GPU's runs from JPEG files, without workers and with them."""
    speeds = loading.training_speeds(machine).set_index(["rung", "precision"])["images_per_s"]
    rows = [
        _loaded_row(run) | {"gpus": 1, "lab": link("dataloader")}
        for run in recordings.recorded_runs(machine, "loading")
        if run.config.rung in ("channels_last", "dataloader")
    ]
    for row in rows:
        row["efficiency"] = row["images_per_s"] / speeds["channels_last", "bf16"]
    return sorted(rows, key=lambda row: row["images_per_s"])


def _loaded_row(run: Run) -> dict[str, Any]:
    """Return the row of `loading.trials`, with data, energy and cores."""
    row, watts = loading.trials([run]).iloc[0].to_dict(), run.record.watts or nan
    row |= {"rung": run.config.rung, "data": _data(run), "watts": watts}
    row |= {"joules_per_image": watts / row["images_per_s"]}
    return row | {"cores": run.record.hardware["cores"], "batch": run.config.batch_size}


def _scaled(machine: str) -> list[dict]:
    """Return rows of `efficiency_table`: all GPU counts of channels_last, the highest of others."""
    runs = {run.name: run for run in efficiency.scaling_runs(machine)}
    table = efficiency.efficiency_table(runs.values()).query("images_per_gpu == 256")
    most = table["gpus"].max()
    return [
        row
        | {"lab": link(lab), "data": "synthetic", "date": runs[row["run"]].record.started_at[:10]}
        for name, lab in SCALED.items()
        for row in table[table["rung"] == name].to_dict("records")
        if name == "channels_last" or row["gpus"] == most
    ]


def _data(run: Run) -> str:
    if run.config.data == "synthetic":
        return "synthetic"
    return f"JPEG, {run.config.workers or 'no'} workers"


def _source(machine: str, dates: set[str]) -> str:
    saved = recordings.load(machine)
    origin = recordings.origin(saved | {"date": " and ".join(sorted(dates))})
    return f"{saved['machine']}: {origin}, by `{saved['command']}`"


def formats(machine: str) -> str:
    """Return the table of a compiled step with each data format, and with synthetic images."""
    rows = {}  # by rung; the last one of repeated runs
    for run in recordings.recorded_runs(machine, "formats"):
        if run.status == "ok" and run.config.compile:
            row = rows[run.config.rung] = _loaded_row(run) | {"format": run.config.format}
            row["decoder"] = DECODERS.get(run.config.format, "workers")
            row["rest_ms"] = row["step_ms"] - row["load_ms"]
    synthetic = rows["synthetic"]
    synthetic |= {"format": "synthetic", "decoder": nan, "workers": nan}
    for row in rows.values():
        row["share"] = row["images_per_s"] / synthetic["images_per_s"]
    return markdown(
        "| format | decoded by | workers | images/s | of synthetic | waits, ms | computes, ms "
        "| host, GiB | J/image |",
        "| {format} | {decoder} | {workers} | {images_per_s!d} | {share:.1%} | {load_ms:.1f} "
        "| {rest_ms:.1f} | {host_gib:.1f} | {joules_per_image:.3f} |",
        sorted(rows.values(), key=lambda row: -row["images_per_s"]),
        f"*Lab {link('formats')}. {synthetic['machine']}, {synthetic['cores']} cores; ResNet-50, "
        f"compiled, bf16, 224 px, batch {synthetic['batch']}; mean of all measured steps. The "
        f"files are in the page cache.*",
    )


def eight_gpus() -> str:
    """Return the prediction for a node of eight GPUs."""
    saved = efficiency.node_prediction()
    return markdown(
        "| rung | predicted images/s | predicted efficiency |",
        "| {rung} | {images_per_s!d} ({images_per_s_low!d} to {images_per_s_high!d}) "
        "| {efficiency:.1%} ({efficiency_low:.1%} to {efficiency_high:.1%}) |",
        saved["rungs"],
        f"*ResNet-50, bf16, 224 px, {saved['images_each']} images per GPU. Predicted "
        f"{saved['date']} for {saved['device']} from runs on {', '.join(saved['fitted_to'])}.*",
    )


def memory(machine: str, other: str) -> str:
    """Return the errors of predicted peaks on two machines."""
    peak_tables = [peaks.recorded_peaks(name) for name in (machine, other)]
    errors = [f"{peaks.median_error(table):.1%}" for table in peak_tables]
    oom = pd.concat(peak_tables).query("status == 'oom'")
    return (
        f"The median error is {errors[0]} on {peak_tables[0]['machine'][0]}, and {errors[1]} for "
        f"the same runs on {peak_tables[1]['machine'][0]}. On both, "
        f"{peaks.fit_predicted_correctly(oom).sum()} of {len(oom)} runs that did not fit were "
        f"predicted not to fit.\n"
    )


def labs() -> str:
    """Return the instructors' table of labs, with the seconds of a recorded rehearsal."""
    first, *lines = [json.loads(line) for line in REHEARSAL.read_text().splitlines()]
    seconds = {discovery.topic(line["notebook"]): line["seconds"] for line in lines}
    rows = [
        vars(lab) | {"s": seconds.get(lab.name, nan), "lab": f"{lab.number} {lab.title}".strip()}
        for lab in discovery.labs()
    ]
    return markdown(
        "| lab | plan, min | jobs of each learner | rehearsed, s | prepare "
        "| where people get stuck |",
        "| {lab} | {minutes} | {jobs} | {s:.0f} | {prepare} | {stuck} |",
        [row | {"jobs": row["jobs"] or "none"} for row in rows],
        f"*{first['machine']}, {first['date']}, recorded by `{first['command']}`.*",
    )


def labs_by_day() -> str:
    """Return README's table of days: for whom, links to the labs, and the hours that they take."""
    days: dict[str, list[Lab]] = {}
    for lab in discovery.labs():
        if (key := lab.notebook.split("_")[0]) not in DAYS:
            names = f"lab_{lab.name}.ipynb, or day2_6_{lab.name}.ipynb for Day 2's sixth lab"
            raise ValueError(
                f"{lab.folder.parent.name}/{lab.name} has no notebook: name it notebooks/{names}"
            )
        days.setdefault(key, []).append(lab)
    rows = [
        {
            "day": DAYS[key][0],
            "for_whom": DAYS[key][1],
            "labs": ", ".join(
                f"[{f'{lab.number} {lab.title}'.strip()}](notebooks/{lab.notebook}.ipynb)"
                for lab in found
            ),
            "hours": sum(lab.minutes for lab in found) / 60,
        }
        for key, found in sorted(days.items(), key=lambda item: [*DAYS].index(item[0]))
    ]
    return markdown(
        "| day | for you if | labs | hours |", "| {day} | {for_whom} | {labs} | {hours:.1f} |", rows
    )


def coverage() -> str:
    """Return, for each document that the course began with, its topics and where they are taught.

    Raises:
        ValueError: a topic names a section that its notebook does not have.
    """
    parts = []
    for document in tomllib.loads((PROJECT / "research/coverage.toml").read_text())["document"]:
        topics = [f"- {entry['topic']}: {_where(entry)}\n" for entry in document["topics"]]
        parts.append(f"## {document['title']}\n\n{''.join(topics)}")
    return "\n".join(parts)


def _where(entry: dict[str, str]) -> str:
    """Return a link to the section that teaches a topic, or why none does."""
    if "missing" in entry:
        return f"not taught: {entry['missing']}"
    is_measured = "section" in entry
    name, heading = entry["section" if is_measured else "described"].split(": ", 1)
    path = discovery.notebook_of(name)
    source = json.loads(path.read_text(encoding="utf-8"))
    text = "".join("".join([*cell["source"], "\n"]) for cell in source["cells"])
    if not re.search(rf"^#+ (\d+\. )?{re.escape(heading)}$", text, re.MULTILINE):
        raise ValueError(f"research/coverage.toml: {path.name} has no section {heading!r}")
    return f"{'' if is_measured else 'only described, in '}{link(name)}, {heading}"


def race_tracks() -> str:
    """Return the table of the race's tracks."""
    return markdown(
        "| track | on | target | budget of a run | seeds, at least |",
        "| {name} | {title} | {target:.0%} | {budget_s:g} s | {seeds} |",
        map(vars, tracks.TRACKS.values()),
    )


def race_entries() -> str:
    """Return the table of the race's shipped entries, by track and machine."""
    order, rows = list(tracks.TRACKS), []
    entries = board.read_entries(board.RECORDED_ENTRIES, recorded=False)
    for entry in sorted(entries, key=lambda entry: (order.index(entry.track), entry.machine)):
        row = vars(entry) | {"top1": entry.top1, "p": entry.p}
        row["note"] = "" if entry.counts else ", does not count"
        row["machine"] = f"{entry.gpus} × {entry.machine}" if entry.gpus > 1 else entry.machine
        for name in ("seconds", "ready_s", "joules"):
            low, high = entry.spread(name) or (nan, nan)
            middle = entry.median(name) if low == low else nan
            row[name] = f"{digits(middle)} ({digits(low)} to {digits(high)})"
        rows.append(row)
    days = " and ".join(sorted({entry.entered_at[:10] for entry in entries}))
    return markdown(
        "| entry | seconds | of which before step one | joules | accuracy | p | machine |",
        "| {track}: {name}{note} | {seconds} | {ready_s} | {joules} | {top1:.2%} | {p:.2g} "
        "| {machine} |",
        rows,
        f"*Medians over the seeds, and their range; recorded {days}.*",
    )


def race_anchors() -> str:
    """Return the table of published training runs."""
    return markdown(
        "| training | accuracy | machine | time | energy |",
        "| [{training}]({source}) | {target} | {machine} | {time} | {energy} |",
        published_results().to_dict("records"),
        "*As published; 2026-11-22.*",
    )


def waterfall(machine: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the picture's bars (one per rung) and ceilings (images/s, low and high)."""
    by_device, ceilings = ladders(machine), recorded_ceilings(machine)
    configs = RUNGS.items()
    keys = [(name, config.precision.replace("half", "bf16")) for name, config in configs]
    records = [by_device["CPU"].get(("baseline", "fp32")), *map(by_device["GPU"].get, keys)]
    bars = pd.DataFrame([vars(record) for record in records if record])
    bars = bars.merge(points(bars, ceilings)[["rung", "bound", "share"]], on="rung", how="left")
    bars["precision"] = [config["precision"] for config in bars["config"]]
    bars["before"] = bars["images_per_s"].shift(fill_value=0.0)
    image = operators(rung("channels_last", **recordings.SETUP)).set_index("operator")
    eager, low, high = fusion_traffic(image)[["eager", "least", "most"]].sum()
    gflop, megabytes = image["gflop"].sum(), ceilings.bytes_per_s / 1e6
    flops = ceilings.flop_per_s["bf16"] / 1e9 / gflop
    walls = [
        ("memory, eager", megabytes / eager, megabytes / eager, f"{eager:.0f} MB"),
        ("memory, compiled", megabytes / high, megabytes / low, f"{low:.0f} to {high:.0f} MB"),
        ("compute, bf16", flops, flops, f"{gflop:.1f} GFLOP"),
    ]
    compiled = bars["rung"] == "compile"  # `points` counts the bytes of eager steps only
    bars.loc[compiled, "share"] = bars["images_per_s"] / walls[1][1]
    bars.loc[compiled, "bound"] = "memory"
    columns = ["rung", "precision", "images_per_s", "before", "share", "bound", "machine"]
    return bars[columns], pd.DataFrame(walls, columns=["name", "low", "high", "cost"])


def draw(bars: pd.DataFrame, walls: pd.DataFrame) -> Figure:
    """Draw the ladder as a waterfall under the machine's ceilings."""
    figure = Figure(figsize=(8.5, 5.4), dpi=110, layout="constrained")
    axes, top = figure.subplots(), 1.22 * bars["images_per_s"].max()
    axes.bar(bars.index, bars["images_per_s"] - bars["before"], 0.8, bars["before"])
    for at, row in enumerate(bars.itertuples()):
        ratio = row.images_per_s / row.before if row.before else 0
        label = digits(row.images_per_s) + (f", ×{digits(ratio)}" if ratio else "")
        label += f"\n{row.share:.0%} of\n{row.bound}" if row.share > 0 else ""
        axes.text(at, row.images_per_s + 0.01 * top, label, ha="center", va="bottom", fontsize=9)
    for row, colour in zip(walls.itertuples(), ("#cc79a7", "#e69f00", "#888888")):
        speeds = " to ".join(dict.fromkeys(f"{round(at, -2):,.0f}" for at in (row.low, row.high)))
        arrow = "↑ " if row.low > top else ""
        text = f"{arrow}{row.name}: {row.cost} an image, {speeds} images/s"
        axes.axhspan(row.low, row.high, color=colour, alpha=0.3)
        axes.axhline(row.low, color=colour)
        axes.text(-0.45, min(row.low, top) - 0.01 * top, text, va="top", fontsize=9)
    axes.set(xlim=(-0.55, len(bars) - 0.45), ylim=(0, top), ylabel="images per second")
    axes.set_xticks(bars.index, bars["rung"] + "\n" + bars["precision"])
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.spines[["top", "right"]].set_visible(False)
    rungs = bars.groupby("machine", sort=False)["rung"].agg(", ".join)
    lines = [f"{names}: {machine}" for machine, names in rungs.items()]
    setup = f"ResNet-50, {from_dict(recordings.SETUP).setup}"
    axes.set_title("\n".join([setup, *lines]), loc="left", fontsize=9)
    return figure


PAGES = {
    "README.md": {"labs": labs_by_day},
    "docs/results.md": {
        "ladder": partial(ladder, "nvidia-h100", "nvidia-h200"),
        "ladder of files and GPUs": partial(
            files_and_gpus, "nvidia-h200", "nvidia-h200-x4", "nvidia-h100-x4"
        ),
        "formats": partial(formats, "nvidia-h200"),
    },
    "docs/performance.md": {"eight GPUs": eight_gpus},
    "docs/memory.md": {"peaks": partial(memory, "nvidia-h100", "nvidia-h200")},
    "research/coverage.md": {"coverage": coverage},
    "docs/instructors.md": {"labs": labs},
    "docs/race.md": {
        "tracks of the race": race_tracks,
        "entries of the race": race_entries,
        "anchors of the race": race_anchors,
    },
}
OF_LABS = (labs_by_day, labs, coverage)


def write(*, check: bool = False, only_labs: bool = False) -> list[str]:
    """Write links to labs, tables and the picture, unless `check`. Return the names of stale ones.

    Args:
        only_labs: write only what follows from labs, which takes a second.

    Raises:
        ValueError: a page lacks the two marker lines of a table.
    """
    stale = lab_links.write(check=check)
    for page, tables in PAGES.items():
        path = PROJECT / page
        text = path.read_text(encoding="utf-8")
        for name, make in tables.items():
            if only_labs and make not in OF_LABS:
                continue
            begin = f"<!-- {name}: python -m tools.pages writes it -->\n"
            end = f"<!-- end of the {name} -->"
            before, begin_line, following = text.partition(begin)
            old_table, end_line, after = following.partition(end)
            if not (begin_line and end_line):
                raise ValueError(f"{page} needs the lines {begin.strip()!r} and {end!r}")
            if old_table != (new_table := make()):
                stale.append(f"the {name} in {page}")
                text = before + begin + new_table + end + after
        if not check:
            path.write_text(text, encoding="utf-8")
    if only_labs:
        return stale
    parts = waterfall("nvidia-h100")
    values = "".join(part.to_csv(float_format="%.5g") for part in parts)
    digest = hashlib.sha256(values.encode()).hexdigest()[:16]
    with Image.open(PICTURE) as picture:
        old_digest = picture.info.get(DIGEST)
    if old_digest != digest:
        stale.append(PICTURE.name)
        if not check:
            draw(*parts).savefig(PICTURE, metadata={DIGEST: digest})
    return stale


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if a table is old"
    )
    parser.add_argument("--labs", action="store_true", help="write only what follows from labs")
    arguments = parser.parse_args()
    check = arguments.check
    stale = ", ".join(write(check=check, only_labs=arguments.labs))
    if check and stale:
        sys.exit(f"These differ from the recorded runs: {stale}. Run: python -m tools.pages")
    print(f"Written: {stale}" if stale else "The pages show what was recorded.")
