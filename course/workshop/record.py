"""Record a machine: run a list of configs on it, and pack what they leave into the course."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from course.config import Config, rung, vary
from course.days.day2 import FULL, TRAINED
from course.jobs.launch import launch, wait
from course.runs.files import write_atomically
from course.runs.recordings import INDEX, SITE, TRACE, origin, trace_name
from course.runs.run import SCRIPTS, Run, git_sha, rank_file
from course.traces import thin as trace_thin

SCRIPT = "solutions/train.py"
TRACE_BYTES = 300_000  # no trace that is shipped is larger
TIME_MIN = 5  # for each run
SYNTHETIC = {"data": "synthetic", "val_steps": 0, "epochs": 1}
BUSY = SYNTHETIC | {"batch_size": 256, "steps": 60, "warmup_steps": 20}  # a large GPU is busy
ON_CPU = BUSY | {"device": "cpu", "steps": 4, "warmup_steps": 1}  # where a step takes seconds
FED = {"persistent_workers": True, "pin_memory": True, "non_blocking": True}
Planned = tuple[Config, int]  # and on how many GPUs


def plan(only: str = "*", gpus: int = 1) -> list[Planned]:
    """What `course record` runs, what matters most first, should the time run out.

    On one GPU: the rungs at batch 256 on synthetic data; traces of them; rungs on the machine's
    processor alone; a sweep of the batch size until memory is out; and what the notebooks ask for
    at full size, with JPEG files. On several: how the last rungs scale, traces of what the ranks
    send each other, JPEG files, and the pair of runs of lab 2.2.

    Args:
        only: a shell pattern for the configs' labels (`label`).
        gpus: as many as the machine has.

    Raises:
        ValueError: no label fits; the message lists them.
    """
    one = (*_at_large_batch(), *_sweeps(), *_of_the_notebooks(), *_loading())
    known = [(config, 1) for config in one] if gpus == 1 else [*_on_several(gpus)]
    if chosen := [planned for planned in known if fnmatch(label(planned[0]), only)]:
        return chosen
    names = ", ".join(dict.fromkeys(label(config) for config, _ in known))
    raise ValueError(f"no rung fits {only!r}: there are {names}")


def label(config: Config) -> str:
    """A config's rung, with -cpu behind it where it runs on the processor beside a GPU's run."""
    beside = config.device == "cpu" and config.rung != "baseline"
    return config.rung + "-cpu" * beside


def _at_large_batch() -> Iterator[Config]:
    half = [rung(name, precision="fp16", **BUSY) for name in ("amp", "channels_last")]
    rungs = [
        *(rung(name, **BUSY) for name in ("device", "amp", "channels_last")),
        rung("device", tf32=True, **BUSY),
        *half,
    ]
    yield rung("baseline", **ON_CPU)
    yield from rungs
    yield from (_traced(config) for config in rungs)
    yield rung("fused", **BUSY)
    yield from (rung("compile", precision=each, **BUSY) for each in ("bf16", "fp16"))
    yield from (rung(name, **ON_CPU) for name in ("amp", "channels_last"))


def _sweeps() -> Iterator[Config]:
    swept = SYNTHETIC | {"steps": 20, "warmup_steps": 5}
    for name in ("channels_last", "amp", "device"):
        yield from (rung(name, **swept, batch_size=size) for size in (64, 128, 512, 1024, 2048))


def _traced(config: Config) -> Config:
    """A short run of the same, one step of it traced; named by what it differs in."""
    name = TRACE + trace_name(config)
    return replace(config, rung=name, steps=8, warmup_steps=5, profile_steps=1)


def _of_the_notebooks() -> Iterator[Config]:
    few = SYNTHETIC | {"steps": 3, "warmup_steps": 1}
    yield from vary(rung("device", **few), batch_size=[32, 64, 256, 1024, 2048])
    yield from (rung(name) for name in ("device", "amp", "channels_last"))
    yield rung("amp", rung="fp16", precision="fp16")
    yield from (rung("channels_last", workers=workers) for workers in (4, 8, 16))
    yield rung("device", warmup_steps=4)
    yield rung("device", warmup_steps=4, profile_steps=1)
    yield rung("baseline")


def _loading() -> Iterator[Config]:
    """The trials of the DataLoader lab at full size; its runs without workers stand above."""
    whole = {"epochs": 3, "warmup_steps": 16, "val_steps": 0}
    yield rung("channels_last", **whole)
    yield rung("dataloader", **whole)
    changes = {
        "one-worker": {"workers": 1},
        "persistent": {"persistent_workers": True},
        "pinned": FED,
        "everything": FED | {"prefetch_factor": 4},
    }
    changes["sixteen"] = changes["everything"] | {"workers": 16}
    changes["bytes"] = changes["sixteen"] | {"uint8": True}
    yield from (
        rung("dataloader", **whole, **change, rung=name) for name, change in changes.items()
    )


def _on_several(gpus: int) -> Iterator[Planned]:
    counts = sorted({*(count for count in (1, 2, 4, 8) if count < gpus), gpus})
    for name in ("channels_last", "compile"):
        yield from ((rung(name, **BUSY | {"batch_size": 256 * count}), count) for count in counts)
    for count in counts[:0:-1]:  # the largest buckets tell bytes per second, the smallest latency
        traced = rung("channels_last", **BUSY | {"batch_size": 256 * count, "profile_steps": 1})
        yield from ((config, count) for config in vary(traced, bucket_mb=[25.0, 1.0, 100.0]))
    traced = rung("channels_last", **BUSY | {"batch_size": 256 * gpus, "profile_steps": 1})
    yield replace(traced, rung="sync_batchnorm", sync_batchnorm=True), gpus
    yield replace(traced, rung="find_unused", find_unused=True), gpus
    # All of the default set in every epoch: what workers load and nobody takes costs time, too.
    files = FED | {"epochs": 12, "steps": 16, "warmup_steps": 16, "val_steps": 0}
    yield from ((rung("dataloader", **files, batch_size=64 * count), count) for count in counts)
    lab = TRAINED | FULL
    yield from ((rung("device", **lab), count) for count in (1, 2))
    yield from (
        (rung("compile", **BUSY | {"batch_size": 512 * count}), count) for count in (1, gpus)
    )


def record(machine: str, planned: Iterable[Planned], folder: Path) -> Path:
    """Run configs here one after another, and pack each as soon as it is over.

    Args:
        machine: the name that the recordings will have, say nvidia-h100.
        planned: each with the number of GPUs to run it on.
        folder: where the machine's own folder is made, or added to.

    Returns:
        The machine's folder.

    Raises:
        ValueError: runs that could not be packed; all others were, those after them too.
    """
    target, refused = folder / machine, []
    for config, gpus in planned:
        run = wait(launch(SCRIPT, config, gpus=gpus, time_min=TIME_MIN), check=False)
        print(f"{run}: {run.record.images_per_s or run.record.error}", flush=True)
        try:
            pack(run, target, machine)
        except ValueError as error:
            refused.append(str(error))
    if refused:
        raise ValueError("\n".join(refused))
    return target


def pack(run: Run, target: Path, machine: str) -> Path:
    """Copy a run into a machine's folder, without this machine's paths, its trace thinned.

    Raises:
        ValueError: the run is not over, or its trace is too large even so.
    """
    if run.record is None or not run.record.machine:
        why = run.record.error if run.record else "it is not over"
        raise ValueError(f"{run} measured nothing, so there is nothing to pack: {why}")
    if len(run.together) > 1:
        raise ValueError(f"{run} took turns with others, which would be lost: record it by itself")
    target.mkdir(parents=True, exist_ok=True)
    text = run.script.read_text()
    version = f"train-{hashlib.sha256(text.encode()).hexdigest()[:8]}.py"
    with tempfile.TemporaryDirectory(dir=target) as draft:
        _copy(run, Path(draft), machine, version)
        (target.parent / SCRIPTS).mkdir(exist_ok=True)
        write_atomically(target.parent / SCRIPTS / version, text)
        shutil.rmtree(target / run.name, ignore_errors=True)
        shutil.copytree(draft, target / run.name)
    _write_index(run, target)
    return target / run.name


def _copy(run: Run, draft: Path, machine: str, version: str) -> None:
    asked = run.launched
    kept = {key: asked[key] for key in ("rung", "gpus", "executor", "git_sha", "launched_at")}
    kept |= {"site": SITE + machine, "script": run.source, "snapshot": version}
    values = asdict(run.record) | {"site": SITE + machine, "logs": []}
    # In the data itself, so that no table and no picture can show it unlabelled.
    values["machine"] += f" ({origin({'date': _day(run), 'versions': run.record.versions})})"
    values["error"] = values["error"].replace(str(run.folder), "RUN")
    if run.record.trace:
        thin = trace_thin.thin(run.folder / run.record.trace, draft / run.record.trace)
        if (size := thin.stat().st_size) > TRACE_BYTES:
            raise ValueError(f"{run}: its trace has {size:,} bytes, more than {TRACE_BYTES:,}")
    (draft / "launch.json").write_text(json.dumps(kept, indent=1) + "\n")
    (draft / "record.json").write_text(json.dumps(values, indent=1) + "\n")
    for path in (run.folder / "config.json", *run.folder.glob("steps*.jsonl")):
        shutil.copy(path, draft / path.name)
    hosts = list(dict.fromkeys(rank["host"] for rank in run.ranks))
    for rank in run.ranks:  # which ranks shared a node matters, and not what it was called
        shown = rank | {"host": f"node-{hosts.index(rank['host'])}"}
        (draft / rank_file(rank["rank"])).write_text(json.dumps(shown, indent=1) + "\n")


def _write_index(run: Run, target: Path) -> None:
    """What holds for the machine; figures of other tools that stand there already stay."""
    path, record = target / INDEX, run.record
    saved: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    if record.device == "cpu" and saved:  # a rung on the machine's processor
        return
    gpus = max(run.launched["gpus"], saved.get("gpus", 1))  # the first run there may have had one
    saved |= {
        "machine": f"{record.machine}, with {record.hardware.get('cores', '?')} cores",
        "gpus": gpus,
        "date": _day(run),
        "driver": record.versions.get("driver", ""),
        "versions": record.versions,
        "git_sha": git_sha(),
        "command": f"course record {target.name}" + f" --gpus {gpus}" * (gpus > 1),
    }
    write_atomically(path, json.dumps(saved, indent=1) + "\n")


def _day(run: Run) -> str:
    return run.record.started_at[:10]
