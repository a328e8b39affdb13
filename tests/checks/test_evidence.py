"""Evidence fails closed: a misspelt name raises an error, or makes a check refuse the run."""

import json
import re
import subprocess
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
from check_helpers import TEXTS
from job_helpers import SCRIPTS

from course.checks import compare, exercises
from course.checks.compare import Folder, error_of
from course.checks.facts import Fact, differences, entry, kinds
from course.checks.lab import Exercise
from course.checks.notes import Notes
from course.config import RUNGS, change
from course.runs import evidence
from course.runs.evidence import NOT_APPLICABLE, Evidence, Operators, from_values, to_values
from course.runs.run import PROJECT, Run

# Every name of the evidence that a CPU can show is in that of one of these runs.
RUNS: dict[str, tuple[str, dict[str, Any], int]] = {
    "one rank": ("channels_last", {"val_steps": 2}, 1),
    "traced": ("channels_last", {"profile_steps": 1}, 1),
    "scaled": ("amp", {"precision": "fp16", "overflow_step": 1}, 1),
    "attention": ("gpt_attention", {}, 1),
    "mixed": ("mixup", {"workers": 2}, 1),
    "compiled": ("compile", {}, 1),
    "restarted": ("restarted", {"save_every": 2}, 1),
    "ranks": ("checkpointed", {"micro_batch": 2}, 2),
    "shards": ("sharded", {"save_weights": True}, 2),
    "pipeline": ("pipeline", {}, 2),
}
EVIDENCE = PROJECT / "course/training/evidence"
ON_GPUS = {"nccl", "host_id", "transports", "hosts", "ranks_per_host", "algebra"}
LAST = {"problems", "is_complete"}  # the recorder adds them, and checks begin with them
PARTS = [kind for kind in vars(evidence).values() if is_dataclass(kind)]
NAMES = {f.name for part in PARTS for f in fields(part)} - ON_GPUS - LAST


def prepared(folder: Folder, prefix: str, label: str) -> tuple[Run, str, int]:
    name, settings, ranks = RUNS[label]
    config = change(RUNGS[name], settings, optional=compare.SMALL)
    place = f"{prefix}/{label}"
    return folder.add(place, exercises.render(TEXTS[config.script]), config, ranks), place, ranks


def names_in(values: Any) -> set[str]:
    """Return all keys of JSON values that are names of the schema."""
    items = values.items() if isinstance(values, dict) else ()
    return {name for name, _ in items} | {x for _, inner in items for x in names_in(inner)}


@pytest.mark.long
def test_each_name_that_an_observer_misspells_makes_a_check_refuse_the_run() -> None:
    folder = Folder()
    trained = {label: prepared(folder, "right", label) for label in RUNS}
    folder.work()
    shown = {}
    for label, (run, _, ranks) in trained.items():
        assert error_of(run) == "", f"{label}: {error_of(run)}"
        values = [to_values(run.evidence(rank)) for rank in range(ranks)]
        for name in {name for of_rank in values for name in names_in(of_rank)} & NAMES:
            shown.setdefault(name, label)
    assert NAMES - {*shown} == set(), "no run shows these"
    text = "".join(path.read_text() for path in EVIDENCE.glob("*.py"))
    written = [name for name in sorted(shown) if re.search(rf"\b{name}=|\"{name}\"", text)]
    assert len(written) > 30
    runs = {name: prepared(folder, f"wrong/{name}", shown[name]) for name in written}
    request = [[name, place, ranks] for name, (_, place, ranks) in runs.items()]
    command = [sys.executable, SCRIPTS / "misspelt_evidence.py", folder.root]
    subprocess.run(command, input=json.dumps(request), text=True, check=True)
    accepted = [name for name, (run, *_) in runs.items() if not error_of(run)]
    folder._tasks = []
    folder.stop()
    assert accepted == []


def test_each_name_that_a_check_misspells_is_refused_at_import() -> None:
    for part in PARTS:
        for name in (f.name for f in fields(part)):
            evidence.check_path(name, part)
            with pytest.raises(AttributeError, match=f"{part.__name__} has no '{name}x': it has "):
                evidence.check_path(f"{name}x", part)


def test_readers_check_their_paths_before_any_run() -> None:
    for read in (entry, kinds):
        with pytest.raises(AttributeError, match="Operators has no 'forward_typs'"):
            read("later.forward_typs")
    with pytest.raises(AttributeError, match="Evidence has no 'loder'"):
        Exercise("", "", "", shows={"the DataLoader": "loder"})
    with pytest.raises(AttributeError, match="Evidence.share has no parts"):
        entry("share.images")


def test_a_misspelt_note_raises() -> None:
    with pytest.raises(AttributeError, match="safes"):
        Notes().safes = 1


def test_not_applicable_is_neither_true_nor_false() -> None:
    with pytest.raises(TypeError, match="compare it with `is`"):
        bool(Evidence().group)


def test_evidence_is_the_same_after_json() -> None:
    whole = Evidence(
        later=Operators(gathers={"forward": [1]}),
        spread=evidence.Spread({"whole": 1}, [], evidence.Bytes(1, 2, 3)),
        began_at=0,
        is_complete=True,
    )
    assert from_values(Evidence, json.loads(json.dumps(to_values(whole)))) == whole
    with pytest.raises(ValueError, match="incomplete evidence.*graphs"):
        from_values(Evidence, {"compiled": {"breaks": {"a": 1}}})


def test_recorded_evidence_is_read_field_by_field() -> None:
    """Null, {} and names of older versions are left out; all else is equal."""
    count = 0
    for path in (PROJECT / "recordings").glob("*/runs.jsonl"):
        for row in map(json.loads, path.read_text().splitlines()):
            for rank in (row.get("record", {}), *row.get("ranks", [])):
                values = rank.get("evidence") or {}
                same_fields(from_values(Evidence, values), values)
                count += 1
    assert count > 600


def same_fields(part: Any, values: dict[str, Any]) -> None:
    for f in fields(part):
        expected, value = values.get(f.name), getattr(part, f.name)
        if is_dataclass(value):
            same_fields(value, expected)
        elif expected not in (None, {}):
            assert value == expected and evidence._parts(type(part))[f.name] is None, f.name
        else:
            assert value is NOT_APPLICABLE or not value, f.name


@pytest.fixture
def run(tmp_path: Path) -> Run:
    write(tmp_path, Evidence(is_complete=True))
    (tmp_path / "launch.json").write_text('{"gpus": 1}')
    (tmp_path / "config.json").write_text("{}")
    return Run(tmp_path)


def write(folder: Path, known: Evidence) -> None:
    text = json.dumps({"status": "ok", "evidence": to_values(known)})
    (folder / "record.json").write_text(text)


def test_a_run_without_complete_evidence_is_refused(run: Run) -> None:
    assert error_of(run) == ""
    write(run.folder, Evidence())
    assert error_of(run).endswith("the run did not record the end of its last step")
    write(run.folder, Evidence(is_complete=True, problems=["evidence unknown: KeyError: 'a'"]))
    assert error_of(run).endswith("incomplete: evidence unknown: KeyError: 'a'")


def test_none_is_no_value_of_a_fact(run: Run) -> None:
    with pytest.raises(TypeError, match="gives None: NOT_APPLICABLE means nothing to compare"):
        next(differences([Fact("share", lambda rank: None)], run, run))
    skipped = Fact("share", lambda rank: rank.evidence.share)
    assert not [*differences([skipped], run, run)]


def test_a_fact_that_reads_a_misspelt_name_raises(run: Run) -> None:
    with pytest.raises(AttributeError, match="shared"):
        next(differences([Fact("share", lambda rank: rank.evidence.shared)], run, run))
