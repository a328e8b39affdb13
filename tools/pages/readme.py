"""What README and docs show of the recorded runs, made from them: no number there is typed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from course.config import from_dict
from course.days import LABS
from course.runs import recordings
from course.runs.record import Record
from course.runs.run import PROJECT
from course.text import digits
from course.traces import tables as trace
from course.traces.tensor_cores import report as tensor_cores
from tools.pages import day2, day3, eight, instructors, memory, race
from tools.pages.markdown import markdown

if TYPE_CHECKING:
    import pandas as pd

# A rung in its precision, in the order of the ladder; and the lab that teaches it.
RUNGS = {rung: lab.number for lab in LABS for rung in lab.rungs}
FIRST = {"GPU": ("device", "fp32"), "CPU": ("baseline", "fp32")}  # what ratios are to
HEAD = (
    "rung",
    "GPU images/s",
    "× device",
    "peak GiB",
    "J/image",
    "Tensor Cores",
    "CPU images/s",
    "× baseline",
    "lab",
)
NONE = "–"
DIGEST = "Data"  # the word in a picture's file before the digest of what it was drawn from


@dataclass(frozen=True)
class Block:
    """A place in a page that is written from data: `make`'s text, between two marking lines."""

    page: Path
    name: str
    make: Callable[[], str]

    def __str__(self) -> str:
        return f"the {self.name} in {self.page.name}"

    def write(self, *, check: bool = False) -> bool:
        """Write it, unless `check`. Was it there, the same?

        Raises:
            ValueError: the page lacks the two lines between which it stands.
        """
        begin = f"<!-- {self.name}: python -m tools.pages writes it -->\n"
        end = f"<!-- end of the {self.name} -->"
        text = self.page.read_text(encoding="utf-8")
        before, found, rest = text.partition(begin)
        _, closed, after = rest.partition(end)
        if not found or not closed:
            raise ValueError(f"{self.page} needs the lines {begin.strip()!r} and {end!r}")
        wanted = f"{before}{begin}{self.make()}{end}{after}"
        if wanted != text and not check:
            self.page.write_text(wanted, encoding="utf-8")
        return wanted == text


@dataclass(frozen=True)
class Waterfall:
    """The picture of a machine's ladder. Its file says from which data it was drawn."""

    path: Path
    machine: str

    def __str__(self) -> str:
        return self.path.name

    def write(self, *, check: bool = False) -> bool:
        """Draw it, unless `check` or it is so already. Was it there, of the same data?

        Raises:
            ValueError: nothing is recorded for the machine, or no ceilings.
        """
        from tools.pages import waterfall
        from tools.pages import waterfall_picture as picture

        steps, walls = waterfall.steps(self.machine), waterfall.walls(self.machine)
        wanted = digest([steps, walls], Path(picture.__file__).read_text())
        same = _drawn_from(self.path) == wanted
        if not (same or check):
            picture.waterfall(steps, walls).savefig(self.path, metadata={DIGEST: wanted})
        return same


def _drawn_from(path: Path) -> str | None:
    """The digest that a picture's file carries; None where there is none, or no picture."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as picture:
            return picture.info.get(DIGEST)
    except (FileNotFoundError, UnidentifiedImageError):
        return None


def digest(tables: Iterable[pd.DataFrame], drawing: str) -> str:
    """A word for what a picture shows, whatever library drew it: tables, and the code for it.

    Numbers count with five digits: the last ones may differ between machines.
    """
    text = "".join(table.to_csv(index=False, float_format="%.5g") for table in tables)
    return hashlib.sha256(f"{text}\n{drawing}".encode()).hexdigest()[:16]


PERFORMANCE = PROJECT / "docs" / "performance.md"
RACE = PROJECT / "docs" / "race.md"
DDP = PROJECT / "benchmarks" / "ddp_h200_x4.jsonl"
PLACES: list[Block | Waterfall] = [
    Block(PROJECT / "README.md", "ladder", lambda: table("nvidia-h100")),
    Waterfall(PROJECT / "docs" / "ladder-nvidia-h100.png", "nvidia-h100"),
    Block(PERFORMANCE, "ladder", lambda: table("nvidia-h200")),
    Block(PERFORMANCE, "loading", lambda: day2.loading("nvidia-h200")),
    Block(PROJECT / "README.md", "ladder of Day 2", day2.ladder),
    Block(PROJECT / "README.md", "formats of Day 3", day3.formats),
    Block(PERFORMANCE, "scaling", lambda: day2.scales("nvidia-h200-x4")),
    Block(PERFORMANCE, "eight GPUs", eight.table),
    Block(PERFORMANCE, "cost of DDP", lambda: day2.ddp_costs(DDP)),
    Block(PERFORMANCE, "messages", lambda: day2.messages("nvidia-h200-x4")),
    Block(PROJECT / "docs" / "instructors.md", "labs", instructors.labs),
    Block(PERFORMANCE, "short epochs", lambda: day2.epochs("nvidia-h200-x4")),
    Block(RACE, "tracks of the race", race.of_tracks),
    Block(RACE, "entries of the race", race.shipped),
    Block(RACE, "anchors of the race", race.of_anchors),
    Block(PROJECT / "docs" / "memory.md", "peaks", lambda: memory.peaks("nvidia-h100")),
    Block(
        PROJECT / "docs" / "memory.md",
        "peaks of the H200",
        lambda: memory.peaks("nvidia-h200"),
    ),
]


def write(*, check: bool = False) -> list[str]:
    """Write what the pages show of the recorded runs. What was not so already, by name?

    Args:
        check: change nothing.

    Raises:
        ValueError: a page lacks the two lines between which its part stands.
    """
    return [str(place) for place in PLACES if not place.write(check=check)]


def table(machine: str) -> str:
    """The ladder of a recorded machine in Markdown, with where and when it was recorded.

    Ratios are to the first rung on the same device; ± is half the distance of the quartiles. What
    was not recorded is a dash.

    Raises:
        ValueError: nothing is recorded for the machine.
    """
    shown = {
        device: {key: record for key, record in ladder.items() if key in RUNGS}
        for device, ladder in recordings.ladders(machine).items()
    }
    rows = []
    for key, lab in RUNGS.items():
        on_gpu = [*_speed(shown["GPU"], key, FIRST["GPU"]), *_cost(shown["GPU"].get(key), machine)]
        rows.append([" ".join(key), *on_gpu, *_speed(shown["CPU"], key, FIRST["CPU"]), lab])
    setup = from_dict(recordings.SETUP).setup
    where = [f"{device}: {_source(ladder.values())}" for device, ladder in shown.items() if ladder]
    command = recordings.load(machine)["command"]
    source = (
        f"ResNet-50, {setup}; medians, ± half the distance of the quartiles. Tensor Cores: the "
        f"share of the GPU's time in which they computed; lab 1.2 tells why bf16 is so near TF32. "
        f"{'. '.join(where)}. Recorded by `{command}`."
    )
    return markdown(HEAD, rows, source=source)


def _speed(ladder: dict[tuple[str, str], Record], key: tuple[str, str], first: tuple) -> list[str]:
    if key not in ladder:
        return [NONE, NONE]
    record = ladder[key]
    half = (record.images_per_s_q3 - record.images_per_s_q1) / 2
    spread = f"± {half:.0f}" if half >= 1 else f"± {half:.1g}"
    ratio = f"{record.images_per_s / ladder[first].images_per_s:.2f}" if first in ladder else NONE
    # No-break spaces, or a narrow page would take the numbers apart.
    return [f"{digits(record.images_per_s)} {spread}".replace(" ", "\u00a0"), ratio]


def _cost(record: Record | None, machine: str) -> list[str]:
    if record is None:
        return [NONE] * 3
    joules = f"{record.joules_per_image:.3f}" if record.joules_per_image else NONE
    return [f"{record.peak_gib:.1f}", joules, _tensor_core_share(record, machine)]


def _tensor_core_share(record: Record, machine: str) -> str:
    """The share of a traced step's GPU time in Tensor Core kernels, where one was recorded."""
    name = recordings.trace_name(replace(from_dict(record.config), rung=record.rung))
    try:
        report = tensor_cores.tensor_core_report(trace.read(recordings.trace_path(machine, name)))
    except ValueError:
        return NONE
    return f"{report['tensor_core_s'].sum() / report['gpu_s'].sum():.0%}"


def _source(records: Iterable[Record]) -> str:
    """On what, when and with what records were made; several where they differ."""
    drivers = [(record.machine, record.versions.get("driver", "")) for record in records]
    return "; ".join(
        dict.fromkeys(
            f"{machine}, driver {driver}" if driver else machine for machine, driver in drivers
        )
    )
