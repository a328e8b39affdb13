"""What other machines measured: real runs that the course ships, as tables.

recordings/MACHINE/index.json       machine, date, driver, versions, git_sha, command, and what else
                                    was measured there once: ceilings, convolutions
recordings/MACHINE/runs.jsonl       one line per run, and
recordings/MACHINE/steps.jsonl.gz   the steps of each (`course.runs.rows`)
recordings/MACHINE/traces/          a folder for each run that left a thin trace or another file;
                                    counters of Nsight Compute
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from course.config import BEYOND, CHOICES, LADDER, QUICK, Config, resolve_half
from course.runs import rows
from course.runs.files import write_atomically
from course.runs.record import Record
from course.runs.run import PROJECT, RECORDED, TRACES, Run

if TYPE_CHECKING:
    import pandas as pd

INDEX = "index.json"
LOCK = ".lock"  # held by whatever changes a machine's files
SITE = "recorded-"  # in front of a machine's name: the site that answers from its recordings
TRACE = "trace-"  # in front of the label of a run that was made for its trace
# Why a run was recorded, which is stored with it and is what runs are chosen by. What matters most
# comes first, and `course record` runs them in this order, should the time run out.
PURPOSES = {
    "throughput": "a rung at a batch that keeps a large device busy",
    "trace": "a short run of such a rung, made for the trace of one step",
    "scaling": "a rung on one GPU and on several",
    "communication": "one traced step on several GPUs, to see what they send each other",
    "feeding": "a rung on one GPU and on several, fed from files that they decode",
    "batch sizes": "a rung at other batch sizes, until memory is out",
    "notebook": "what a notebook launches at full size",
    "loading": "ways of loading files for one GPU",
    "formats": "ways of storing images, and of decoding them, for one GPU",
    "augmentation": "ways of augmenting, how fast they are and what they bring, over seeds",
    "compiler": "a compiled step in each mode, at two batch sizes, and what compiling it takes",
    "optimizers": "a step with each optimizer",
    "memory": "a network that hardly fits, in ways that trade time for memory",
    "sharding": "a large network on several GPUs, whole on each or in shards",
    "parallel": "a large network on several GPUs, its layers shared out, or one after the other",
    "learning": "trainings to their end, several at a time on one GPU: their times say nothing",
    "search": "the trials of a search, one after another on one GPU",
    "practice": "the same bits again, and checkpoints: what either costs",
    "variant": "a script with lines put in, which a notebook launches to show what they do",
}
LEARNING = "learning"  # a purpose of which no time is kept
SEARCH = "search"
PRACTICE = "practice"
FULL_BATCH = ("throughput", "scaling")  # on one GPU, either tells how fast a rung is at its best
LABELS = ("rung", "data_root")  # of a config: they change nothing that is computed
HANDED_ON = ("uint8",)  # nor do these, but how fast files come, which is asked of FED alone
FED = ("loading", "formats", "augmentation", "feeding")  # how images come: no part of the ladder
ASIDE = (
    "trace",
    "variant",
    "optimizers",
    "compiler",
    "memory",
    "sharding",
    "parallel",
    PRACTICE,
    SEARCH,
    *FED,
)  # nor are these
SETUP = {"model": "resnet50", "data": "synthetic", "image_px": 224, "batch_size": 256}
NEAREST = 4  # so many recorded runs are named where none fits


def machines() -> list[str]:
    """The machines of which there are recordings."""
    return sorted(path.parent.name for path in RECORDED.glob(f"*/{INDEX}"))


def load(machine: str) -> dict[str, Any]:
    """The index of a machine.

    Raises:
        ValueError: nothing was recorded there; the message lists the machines.
    """
    return json.loads((_folder(machine) / INDEX).read_text())


def part(machine: str, name: str) -> Any:
    """A part of a machine's index: what was measured there once.

    Raises:
        ValueError: nothing was recorded there, or no such part; the message lists who has it.
    """
    saved = load(machine)
    if name not in saved:
        others = ", ".join(each for each in machines() if name in load(each)) or "nobody"
        raise ValueError(f"no {name} is recorded for {machine!r}: {others}")
    return saved[name]


def save(machine: str, parts: dict[str, Any]) -> None:
    """Add parts to a machine's index, or replace them; the others stay. Two can save at once.

    Raises:
        ValueError: nothing was recorded there; the message lists the machines.
    """
    folder = _folder(machine)
    with FileLock(folder / LOCK):
        text = json.dumps(load(machine) | parts, indent=1) + "\n"
        write_atomically(folder / INDEX, text)


def trace_folder(machine: str) -> Path:
    """The folder of what profilers left on a machine.

    Raises:
        ValueError: nothing was recorded there; the message lists the machines.
    """
    return _folder(machine) / TRACES


def recorded_runs(machine: str, *purposes: str) -> list[Run]:
    """The recorded runs of a machine, in the order in which they ran.

    Args:
        purposes: only those that were recorded for one of these; without any: all.

    Raises:
        ValueError: nothing was recorded there, or no such purpose; the message lists what there is.
    """
    for purpose in purposes:
        check_purpose(purpose)
    table = _folder(machine) / rows.RUNS
    known = _runs(table, rows.version(table))
    return [run for run in known if not purposes or run.purpose in purposes]


@lru_cache(maxsize=32)  # each question about a machine goes through all its runs
def _runs(table: Path, _version: tuple[int, ...]) -> list[Run]:
    """The runs of a table in the order in which they ran, as the table is now."""
    found = [Run(table.parent / TRACES / name) for name in rows.names(table)]
    return sorted(found, key=lambda run: (run.record.started_at, run.name))


def check_purpose(purpose: str) -> None:
    """Raise ValueError, with a list of them, if there is no such purpose."""
    if purpose not in PURPOSES:
        raise ValueError(f"no purpose {purpose!r} of a recorded run: choose {', '.join(PURPOSES)}")


def origin(saved: dict[str, Any]) -> str:
    """When and with what it was recorded, in words: no recorded number is shown without."""
    torch_version = saved["versions"]["torch"].partition("+")[0]
    return f"recorded {saved['date']}, PyTorch {torch_version}"


def ladders(machine: str) -> dict[str, dict[tuple[str, str], Record]]:
    """The rungs of the ladder as recorded in SETUP, those on the GPU and those on the CPU apart.

    Returns:
        "GPU" and "CPU": what a rung measured there, by its name and its precision. Of several the
        last; of those that measured nothing, none.

    Raises:
        ValueError: nothing was recorded there; the message lists the machines.
    """
    return ladder_of(recorded_runs(machine, *FULL_BATCH))


def ladder_of(runs: Iterable[Run]) -> dict[str, dict[tuple[str, str], Record]]:
    """`ladders`, of some runs of a machine in the order in which they ran."""
    found: dict[str, dict[tuple[str, str], Record]] = {"GPU": {}, "CPU": {}}
    for record in (run.record for run in runs):
        config, is_rung = record.config, record.rung in LADDER | BEYOND and record.gpus == 1
        if is_rung and record.images_per_s and SETUP.items() <= config.items():
            device = "CPU" if record.device == "cpu" else "GPU"
            found[device][record.rung, config["precision"]] = record
    return found


def recorded(machine: str, data: str = "synthetic", device: str = "auto") -> pd.DataFrame:
    """The runs as they were recorded on another machine, shaped as by `ladder_table`.

    Runs made for their trace, for ways of loading, or for other optimizers are left out:
    `trace_path` and `recorded_runs` have those. Column `ratio` is that to the first baseline.

    Args:
        data: what the runs were fed with, as in a Config.
        device: "auto": each rung where the ladder has it, the baseline on the processor and the
            others on the accelerator; "cpu": the rungs on that machine's processor alone.

    Raises:
        ValueError: nothing was recorded on that machine, or with that data there, or another
            device; the message lists what there is.
    """
    if device not in CHOICES["device"]:
        raise ValueError(f"device={device!r}: choose {' or '.join(CHOICES['device'])}")
    return _table(_on_device(machine, data, device))


def _on_device(machine: str, data: str, device: str) -> list[Run]:
    """The runs of the ladder on this device and data. The baseline begins those on either, also
    where the processor was recorded after the GPU."""
    known = [run for run in recorded_runs(machine) if run.purpose not in ASIDE]
    found = [
        run
        for run in known
        if run.config.data == data
        and (run.config.rung == "baseline" or run.config.device == device)
    ]
    if not found:
        there = sorted({run.config.data for run in known})
        raise ValueError(
            f"no run on {data} data is recorded on {machine}: there is "
            f"{', '.join(there) or 'nothing'}"
        )
    return sorted(found, key=lambda run: run.config.device == "auto")


def _table(runs: Iterable[Run]) -> pd.DataFrame:
    import pandas as pd

    # The machine of each record says that it is recorded, and when.
    table = pd.DataFrame([vars(run.record) for run in runs])
    for setting in ("precision", "channels_last", "batch_size", "workers"):
        table[setting] = [config[setting] for config in table["config"]]
    table["setup"] = [Config(**config).setup for config in table["config"]]
    first = table.loc[table["rung"].eq("baseline"), "images_per_s"]
    table["ratio"] = table["images_per_s"] / (first.iloc[0] if len(first) else math.nan)
    return table


def large(machine: str, rungs: Iterable[str]) -> pd.DataFrame:
    """The ladder's own rungs as recorded on a GPU that is kept busy: `recorded`, at batch 256.

    Args:
        rungs: names of the ladder; those that were not recorded so are left out.
    """
    runs, wanted = _on_device(machine, "synthetic", "auto"), set(rungs)
    large = [
        run.purpose in FULL_BATCH
        and run.config.batch_size == SETUP["batch_size"]
        and run.config.rung in wanted
        and _computes_rung(run)
        for run in runs
    ]
    return _table(runs)[large]


def _computes_rung(run: Run) -> bool:
    """Whether a run computes what the rung of its name does, whatever its sizes."""
    wanted = (LADDER | BEYOND).get(run.config.rung, Config())
    names = ("precision", "channels_last", "compile")
    return all(_fits(run, name, getattr(wanted, name)) for name in names)


def _fits(run: Run, name: str, wanted: Any) -> bool:
    """Whether the run computed what a setting asks for; `half` is its machine's own format."""
    if name == "precision" and wanted == "half":
        formats = run.record.hardware.get("half_units", [])
        wanted = resolve_half(formats, scales_loss=run.config.scales_loss)
    return getattr(run.config, name) == wanted


def trace_path(machine: str, name: str) -> Path:
    """The trace of a recorded run: a thin one of one training step.

    Raises:
        ValueError: no traced run of this name; the message lists those of the machine.
    """
    traced = {
        run.config.rung.removeprefix(TRACE): run.folder / run.record.trace
        for run in recorded_runs(machine, "trace")
    }
    if name not in traced:
        raise ValueError(
            f"{machine} has no trace {name!r}: there are {', '.join(traced) or 'none'}"
        )
    return traced[name]


def trace_name(config: Config) -> str:
    """What a trace of a run with this config is called: after what tells it from others."""
    name = "tf32" if config.precision == "tf32" else config.rung
    return name + "_fp16" * (config.precision == "fp16") + "_cpu" * (config.device == "cpu")


def answer(machine: str, config: Config, gpus: int = 1, added: dict[str, str] | None = None) -> Run:
    """The last run on so many GPUs that was recorded with this config; its labels may differ.

    Of several, one of this rung comes first: the same may have been recorded for another purpose.

    The script is not compared: what ran is solutions/train.py of the recorded commit, or a
    variant of it.

    Args:
        added: of a variant, the lines that were put into the solution, by the line before them.

    Raises:
        ValueError: no such run was recorded; the message names those that come nearest.
    """
    wanted = _computed(config)
    newest = ((run, run.launched) for run in reversed(recorded_runs(machine)))  # a file, read once
    same = [(run, asked) for run, asked in newest if asked.get("added") == added]
    if added and not same:
        raise ValueError(
            f"no script with these lines put in was recorded on {machine}: {added}. Launch it on "
            f"another site, as site='local'"
        )
    known = [
        (_differences(run, asked, wanted, gpus), _nearness(run, asked, config), run)
        for run, asked in same
    ]
    known.sort(key=lambda each: (len(each[0]), each[1]))
    for differences, _, run in known:
        if not differences:
            return run
    nearest = "\n".join(
        f"  {run.config.rung}: {', '.join(differences)}" for differences, _, run in known[:NEAREST]
    )
    advice = f"\nrecorded({machine!r}) lists all"
    different = {each.partition("=")[0] for each in known[0][0]} if known else set()
    if added is None and different & {*QUICK}:  # variants were recorded at the quick size
        advice += ". In a notebook, quick = False requests the recorded sizes"
    raise ValueError(
        f"this run was not recorded on {machine}. Those that come nearest, and where they differ:\n"
        f"{nearest}{advice}"
    )


def _nearness(run: Run, launched: dict[str, Any], config: Config) -> tuple[bool, bool]:
    """What is compared where two runs computed the same; the smaller answers."""
    # What was trained once more, to be compared with itself, answers for nothing that is there.
    return run.config.rung != config.rung, launched.get("purpose", "") == PRACTICE


def _computed(config: Config) -> dict[str, Any]:
    return {key: value for key, value in vars(config).items() if key not in LABELS}


def _differences(
    run: Run, launched: dict[str, Any], wanted: dict[str, Any], gpus: int
) -> list[str]:
    left_out = () if launched.get("purpose", "") in FED else HANDED_ON
    names = [name for name in wanted if name not in left_out]
    differing = [name for name in names if not _fits(run, name, wanted[name])]
    found = [f"{name}={getattr(run.config, name)!r}" for name in differing]
    return found + ([f"gpus={launched['gpus']}"] if launched["gpus"] != gpus else [])


def check_shipped() -> None:
    """Raise ValueError if the folder of all recordings is missing."""
    if not RECORDED.is_dir():
        is_clone = (PROJECT / ".git").exists()
        fix = f"git checkout {RECORDED.name}" if is_clone else "pip install -e . in a clone"
        raise ValueError(
            f"{RECORDED} is missing: the recordings are part of the project's clone. Restore them: "
            f"{fix}"
        )


def _folder(machine: str) -> Path:
    check_shipped()
    if machine not in machines():
        known = ", ".join(machines())
        raise ValueError(f"nothing is recorded for {machine!r}: there are {known}")
    return RECORDED / machine
