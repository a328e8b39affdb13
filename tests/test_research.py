"""The loop of all measurements saves each row, goes on after a failure, and continues a file."""

from pathlib import Path

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
