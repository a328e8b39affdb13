"""Records: the config and the measurements of a run, written once, readable by any version."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from course.runs.evidence import Evidence, from_values, to_values
from course.runs.files import write_atomically
from course.text import TEXT, printable, shortened

RECORD_SCHEMA = 1
STATUSES = ("ok", "oom", "failed", "timeout", "cancelled", "lost")
RESERVE = "reserve.bin"  # reserves space on the disk until the record is written
RESERVE_BYTES = 64 * 1024


@dataclass(frozen=True)
class Record:
    """The result of a run. None: not measured. Units are part of the names.

    Times are medians over the steps after warm-up, or quartiles (q1, q3); `watts` is the mean of
    one GPU over these steps. `peak_gib` is the peak of the device's allocator, or on a CPU the
    peak resident size of the process (see `memory_kind`). `evidence` describes the operators of
    the first step (`course.runs.evidence`), `trace` is the trace's file in the run's folder.
    """

    status: str
    rung: str = ""
    error: str = ""
    site: str = ""
    gpus: int = 1
    machine: str = ""
    device: str = ""
    job_id: str = ""
    data: str = ""
    step_s: float | None = None
    step_s_q1: float | None = None
    step_s_q3: float | None = None
    load_s: float | None = None
    forward_s: float | None = None
    loss_s: float | None = None
    backward_s: float | None = None
    optimizer_s: float | None = None
    images_per_s: float | None = None
    images_per_s_q1: float | None = None
    images_per_s_q3: float | None = None
    peak_gib: float | None = None
    reserved_gib: float | None = None
    memory_kind: str = ""
    host_gib: float | None = None  # of the training process and its workers, at most
    watts: float | None = None
    joules_per_image: float | None = None
    epochs: list[dict[str, float]] = field(default_factory=list)
    steps_measured: int = 0
    not_measured: str = ""  # why a run that is ok has no times
    load: float | None = None  # the machine's load average at the end, per core
    turns: int = 0  # blocks of steps; 0: the run did not take turns
    left: list[str] = field(default_factory=list)  # of the group, ended before the others
    first_loss: float | None = None
    last_loss: float | None = None
    val_loss: float | None = None
    val_top1: float | None = None
    val_top5: float | None = None
    val_images: int | None = None
    weights_by: list[int] = field(default_factory=list)  # the ranks that wrote weights.pt
    extra: dict[str, Any] = field(default_factory=dict)  # what hooks add, by their owner's name
    wall_s: float | None = None
    started_at: str = ""
    ended_at: str = ""
    git_sha: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    hardware: dict[str, Any] = field(default_factory=dict)
    evidence: Evidence = field(default_factory=Evidence)
    trace: str = ""
    logs: list[str] = field(default_factory=list)
    schema: int = RECORD_SCHEMA

    def __post_init__(self) -> None:
        # It is shown in terminals and on pages, and must fit into RESERVE.
        object.__setattr__(self, "error", shortened(printable(self.error), TEXT))

    @classmethod
    def from_json(cls, text: str) -> Record:
        """Read a record of any version: unknown fields are ignored, missing ones are None.

        Raises:
            ValueError: the text is no record, or incomplete.
        """
        return cls.from_values(json.loads(text))

    @classmethod
    def from_values(cls, values: Any) -> Record:
        """Create a record from a JSON object, as `from_json` does."""
        if not isinstance(values, dict) or values.get("status") not in STATUSES:
            raise ValueError(f"a record needs a status, one of {', '.join(STATUSES)}")
        known = {f.name: values[f.name] for f in fields(cls) if f.name in values}
        blank = vars(cls("ok")) | {"evidence": values.get("evidence")}
        for name, value in known.items():
            kind = float | int | None if blank[name] is None else type(blank[name])
            if not isinstance(value, kind):
                raise ValueError(f"{name} has a wrong type: {shortened(repr(value), 80)}")
        return cls(**known | {"evidence": from_values(Evidence, values.get("evidence"))})

    def to_values(self) -> dict[str, Any]:
        """Return the record as JSON's values."""
        return vars(self) | {"evidence": to_values(self.evidence)}


def write_record(folder: Path, record: Record) -> None:
    """Write record.json, unless the run has one: the first record counts.

    Raises:
        OSError: the disk is full or cannot be written.
    """
    (folder / RESERVE).unlink(missing_ok=True)
    final, draft = folder / "record.json", folder / f".record.{os.getpid()}"
    write_atomically(draft, json.dumps(record.to_values(), indent=1))
    try:
        os.link(draft, final)  # unlike a rename, it fails where the file exists
    except FileExistsError:
        pass
    except OSError:  # a file system without hard links
        if not final.exists():
            os.replace(draft, final)
    finally:
        draft.unlink(missing_ok=True)
