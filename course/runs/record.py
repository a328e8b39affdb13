"""Records: what a run was and what it measured, written once and read by any version."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from course.runs.files import write_atomically
from course.text import TEXT, printable, shortened

RECORD_SCHEMA = 1
STATUSES = ("ok", "oom", "failed", "timeout", "cancelled", "lost")
PHASES = ("load", "forward", "loss", "backward", "optimizer")  # of a step, in their order
RESERVE = "reserve.bin"  # room on the disk for the record, kept from launch until it is written
RESERVE_BYTES = 64 * 1024


@dataclass(frozen=True)
class Record:
    """What a run was and what it measured. None: not measured. Units are in the names.

    Times are medians over the steps after warm-up, with quartiles where the name says q1 or
    q3; `watts` is the mean of one GPU over those steps. `peak_gib` is the device allocator's
    peak, or on a CPU the peak resident size of the process (`memory_kind` says which).
    `evidence` is what the first step's operators were seen to do
    (`course.training.evidence`), `trace` the file of a traced run in its folder.
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
    host_gib: float | None = None  # training process and its workers, at the fullest seen
    watts: float | None = None
    joules_per_image: float | None = None
    epochs: list[dict[str, float]] = field(default_factory=list)
    steps_measured: int = 0
    turns: int = 0  # in which these steps were taken, each a block of them; 0: it ran alone
    left: list[str] = field(default_factory=list)  # ended before their time, while turns were taken
    first_loss: float | None = None
    last_loss: float | None = None
    val_loss: float | None = None
    val_top1: float | None = None
    val_images: int | None = None  # so many were validated
    weights_by: list[int] = field(default_factory=list)  # ranks that wrote weights.pt
    race: dict[str, Any] = field(default_factory=dict)  # of a race: seconds and joules, at marks
    wall_s: float | None = None
    started_at: str = ""
    ended_at: str = ""
    git_sha: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    hardware: dict[str, Any] = field(default_factory=dict)
    evidence: dict[str, Any] = field(default_factory=dict)
    trace: str = ""
    logs: list[str] = field(default_factory=list)
    schema: int = RECORD_SCHEMA

    def __post_init__(self) -> None:
        # Whoever wrote the error: a terminal and a page show it, and RESERVE must have room for it.
        object.__setattr__(self, "error", shortened(printable(self.error), TEXT))

    @classmethod
    def from_json(cls, text: str) -> Record:
        """Read a record of any version: unknown fields are passed over, missing ones None.

        Raises:
            ValueError: the text is no record, cut short for instance.
        """
        return cls.from_values(json.loads(text))

    @classmethod
    def from_values(cls, values: Any) -> Record:
        """As `from_json`, of the object that the text has."""
        if not isinstance(values, dict) or values.get("status") not in STATUSES:
            raise ValueError(f"a record needs a status, one of {', '.join(STATUSES)}")
        return cls(**{f.name: values[f.name] for f in fields(cls) if f.name in values})


def write_record(folder: Path, record: Record) -> None:
    """Write record.json, unless the run has one: the first verdict stands.

    Raises:
        OSError: the disk is full or cannot be written.
    """
    (folder / RESERVE).unlink(missing_ok=True)
    final, draft = folder / "record.json", folder / f".record.{os.getpid()}"
    write_atomically(draft, json.dumps(asdict(record), indent=1))
    try:
        os.link(draft, final)  # unlike a rename, it fails where the file exists
    except FileExistsError:
        pass
    except OSError:  # a file system without hard links
        if not final.exists():
            os.replace(draft, final)
    finally:
        draft.unlink(missing_ok=True)
