"""The loop of all measurements saves each row, goes on after a failure, and continues a file."""

import json
from pathlib import Path

import pytest

from research.sweep import as_part, lines, sweep


def test_a_sweep_saves_failures_keeps_its_time_and_continues(tmp_path: Path) -> None:
    out, calls = tmp_path / "out.jsonl", []

    def measure(part: str) -> dict | list[dict]:
        calls.append(part)
        if part == "wrong" and calls.count("wrong") == 1:
            raise ZeroDivisionError("division by zero")
        return [{"ms": 1}, {"ms": 2}] if part == "two" else {"ms": len(lines(out))}

    plan = [{"part": name} for name in ("wrong", "two", "late", "last")]
    longest = {"late": 100.0}
    sweep(out, plan, measure, 50, lambda part: longest.get(part, 0.0))
    assert calls == ["wrong", "two", "last"]  # "late" may end too late
    (wrong, *good) = lines(out)
    assert wrong["failed"] == "ZeroDivisionError: division by zero" and "torch" in wrong
    assert [(row["part"], row["ms"]) for row in good] == [("two", 1), ("two", 2), ("last", 3)]
    sweep(out, plan, measure)
    assert calls[3:] == ["wrong", "late"]
    part = as_part(lines(out))
    assert part["rows"][0] == {"part": "two", "ms": 1} and len(part["rows"]) == 5
    assert {"machine", "date", "torch", "command"} < {*part}


def test_a_sweep_continues_a_file_that_is_cut_short(tmp_path: Path) -> None:
    out = tmp_path / "new folder" / "out.jsonl"
    plan = [{"part": "a", "size": 2}, {"part": "a"}, {"part": "b"}]  # one contains another
    sweep(out, plan[:1], lambda **row: {"ms": 1})
    out.write_text(out.read_text() + out.read_text()[:20])  # of a full disk or a kill
    sweep(out, plan, lambda part: {"ms": object() if part == "a" else 2})
    assert [(row["part"], row.get("ms")) for row in lines(out)] == [("a", 1), ("a", None), ("b", 2)]
    assert "not JSON serializable" in lines(out)[1]["failed"]
    out.write_text(out.read_text().rstrip("\n"))
    assert len(sweep(out, plan, lambda part: {"ms": 3})) == len(lines(out)) == 4


def test_a_sweep_refuses_a_file_of_another_machine(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text(json.dumps({"part": "a", "plan": ["part"], "machine": "Cray-1"}) + "\n")
    with pytest.raises(SystemExit, match=r"has rows of Cray-1, but this machine is .*: choose"):
        sweep(out, [{"part": "a"}], lambda part: {"ms": 1})
