"""The parity benchmark: what it says of distributions that are known, and that it breaks a term."""

import argparse
import json
import math
from pathlib import Path

import parity
import pytest
import torch
from cases import for_all

from course.runs.run import PROJECT
from fast_resnet import formulas

SAME = [0.30, 0.32, 0.29, 0.33, 0.31]
ALSO = [0.31, 0.30, 0.32, 0.28, 0.34]
OTHER = [0.40, 0.39, 0.43, 0.41, 0.42]


def trained(**ways: list[float]) -> dict[str, list[dict[str, float]]]:
    return {way: [{"mean_loss": value} for value in values] for way, values in ways.items()}


def test_chance_is_that_of_the_exact_test() -> None:
    assert parity.chance(SAME, SAME) == 1
    assert parity.chance(SAME, ALSO) > 0.5
    assert parity.chance(SAME, OTHER) == pytest.approx(2 / math.comb(10, 5))


def test_a_training_that_fails_is_another_one() -> None:
    assert parity.chance(SAME, [math.nan] * 5) == pytest.approx(2 / math.comb(10, 5))


@for_all(
    ("algebra", "again", "broken", "fine", "told"),
    [
        (ALSO, ALSO, OTHER, True, "algebra: no difference"),
        (OTHER, ALSO, OTHER, False, "algebra: another training"),
        (ALSO, OTHER, OTHER, False, "nothing is shown: again was to be equal"),
        (ALSO, ALSO, SAME[::-1], False, "nothing is shown: broken was to be told"),
    ],
)
def test_the_verdict(
    algebra: list[float], again: list[float], broken: list[float], fine: bool, told: str
) -> None:
    found = trained(autocast=SAME, algebra=algebra, again=again, broken=broken)
    ends_well, said = parity.verdict([*parity.compared(found)])
    assert ends_well is fine
    assert told in "\n".join(said)


def test_what_was_trained_already_is_not_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ways trained one process each, then the verdict of all; another step count is another one."""
    trained_now = []

    def train(way: str, data: object, seed: int, asked: object) -> dict[str, float]:
        trained_now.append((way, seed))
        return {"mean_loss": SAME[seed % 1000] if way != "broken" else OTHER[seed]}

    monkeypatch.setattr(parity, "train", train)
    monkeypatch.setattr(parity, "crops", lambda *sizes: None)

    def run(*arguments: str) -> None:
        out = ["--out", str(tmp_path / "out.jsonl"), "--seeds", "5"]
        monkeypatch.setattr("sys.argv", ["parity.py", *out, *arguments])
        parity.main()

    for way in ("broken", "again"):
        run("--ways", way)
    assert "no verdict without autocast" in capsys.readouterr().out and len(trained_now) == 10
    with pytest.raises(SystemExit) as ended:
        run("--ways", "autocast", "again", "broken")
    assert not ended.value.code and len(trained_now) == 15
    assert "broken: another training" in capsys.readouterr().out
    run("--ways", "again", "--steps", "7")
    assert len(trained_now) == 20


@pytest.mark.parametrize(("name", "seeds"), [("2_cores", 8), ("h100", 6)])
def test_recorded_ways_differ_only_where_a_term_is_missing(name: str, seeds: int) -> None:
    found: dict[str, list[dict[str, float]]] = {}
    for line in (PROJECT / "benchmarks" / f"parity_{name}.jsonl").read_text().splitlines():
        one = json.loads(line)
        measures = ("mean_loss", "last_loss", "val_top1", "steps_to_accuracy")
        found.setdefault(one["way"], []).append({key: one[key] for key in measures if key in one})
    assert {len(trained) for trained in found.values()} == {seeds}
    assert {"autocast", "algebra", "again", "broken"} <= {*found}
    rows = [*parity.compared(found)]
    fine, said = parity.verdict(rows)
    assert fine, said


def test_the_limit_is_shared_out_among_measures() -> None:
    """Of eight looks at equal ways one is likely to seem rare."""
    rows = [{"way": "algebra", "measure": f"{at}", "p": 0.03} for at in range(8)]
    assert parity.verdict(rows)[0]
    assert not parity.verdict(rows[:1])[0]


def test_one_term_is_forgotten_and_remembered_again() -> None:
    whole = formulas.differences()
    with parity.forgotten():
        broken = formulas.differences()
    assert broken["gradient of gamma"] == whole["gradient of gamma"]
    assert broken["gradient of z"] > 1e-3 > whole["gradient of z"]
    assert formulas.differences() == whole


@pytest.mark.slow
def test_ways_begin_alike_and_train() -> None:
    """A few steps of each on images of noise; that is no benchmark."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (32, 3, 32, 32), generator=generator, dtype=torch.uint8)
    labels = torch.arange(32) % 4
    data = parity.Data(images, labels, images, labels, 4)
    asked = argparse.Namespace(precision="bf16", lr=0.02, steps=2, batch=32, accuracy=0.0)
    found = {way: parity.train(way, data, 0, asked) for way in ("fp32", "autocast", "algebra")}
    for way in found:
        assert found[way]["mean_loss"] == pytest.approx(found["fp32"]["mean_loss"], rel=0.03)
    assert found["algebra"] != found["autocast"] != found["fp32"]
