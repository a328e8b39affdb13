"""Checks: the solution passes, the untouched exercise and every named mistake fail where they should.

All scripts are trained for real, on a network and images small enough for one process.
"""

from dataclasses import replace
from pathlib import Path

import pytest
from check_helpers import SOLVED, TEXT, verdicts
from job_helpers import prepared, train_together

from course.config import Config, rung
from course.days.day1 import DAY1
from course.labs import checks, exercises
from course.labs.checks import FAILED, PASSED, UNMEASURABLE, Checked, check, judge
from course.labs.progress import progress
from course.runs.ratio import Ratio
from course.runs.run import Run
from course.training.pretended import device_of_first_step

TINY = dict(
    quick=True,
    model="resnet18",
    data="synthetic",
    image_px=32,
    batch_size=4,
    val_steps=0,
    steps=2,
    warmup_steps=1,
    lr=0.001,
)

# check: {name of the mistake: (part that must fail, text to replace, replacement)}
MISTAKES = {
    "day1.device": {
        "model left behind": ("mechanism", "    model = model.to(device)\n", ""),
        "labels left behind": ("mechanism", "            labels = labels.to(device, non_blocking=cfg.non_blocking)\n", ""),
        "batch left behind": ("mechanism", "            images = images.to(device, non_blocking=cfg.non_blocking)\n            labels = labels.to(device, non_blocking=cfg.non_blocking)\n", ""),
        "baseline moved too": ("mechanism", 'if cfg.device == "auto" and accelerator', "if accelerator"),
    },
    "day1.amp": {
        "autocast never entered": ("mechanism", "            with autocast:\n                scores", "            with nullcontext():\n                scores"),
        "backward under autocast": ("mechanism", "            scaler.scale(loss).backward()\n", "            with autocast:\n                scaler.scale(loss).backward()\n"),
        "the other half precision": ("mechanism", "HALF.get(cfg.precision), enabled", "torch.float16, enabled"),
        "also where fp32 is asked for": ("mechanism", "enabled=cfg.precision in HALF", "enabled=True"),
        "no optimizer step": ("correct", "            scaler.step(optimizer)\n", ""),
        "whole model in bf16": ("mechanism", "    criterion = ", "    model = model.bfloat16()\n    criterion = "),
    },
    "day1.scaler": {
        "plain step": ("correct", "            scaler.step(optimizer)\n", "            optimizer.step()\n"),
        "no update of the scale": ("correct", "            scaler.update()\n", ""),
        "loss not scaled": ("correct", "scaler.scale(loss).backward()", "loss.backward()"),
        "always scaled": ("mechanism", 'enabled=cfg.precision == "fp16"', "enabled=True"),
        "scaler left off": ("correct", 'enabled=cfg.precision == "fp16"', "enabled=False"),
    },
    "day1.channels_last": {
        "only the model": ("mechanism", "                images = images.to(memory_format=torch.channels_last)\n", "                pass\n"),
        "only the images": ("mechanism", "        model = model.to(memory_format=torch.channels_last)\n", "        pass\n"),
        "contiguous undoes it": ("mechanism", "images.to(memory_format=torch.channels_last)", "images.to(memory_format=torch.channels_last).contiguous()"),
        "always": ("mechanism", "    if cfg.channels_last:\n        model", "    if True:\n        model"),
    },
    "day1.profile": {
        "never stepped": ("mechanism", "            profiler.step()\n", ""),
        "trace not kept": ("mechanism", "on_trace_ready=run.save_trace, ", ""),
        "no schedule": ("mechanism", "schedule=profiling.schedule(cfg), ", ""),
        "no shapes": ("mechanism", ", record_shapes=True", ""),
    },
}  # fmt: skip

# These change the run of the step before, too; for the others the solution's serves.
MOVES_THE_STEP_BEFORE = (
    "baseline moved too",
    "also where fp32 is asked for",
    "always scaled",
    "always",
)


def configs(name: str) -> dict[str, Config]:
    """The two configs of a check, small."""
    wanted = DAY1[name]
    both = {**TINY, **wanted.settings, **({"steps": 6} if wanted.settings else {})}
    return {
        "against": rung(wanted.against, **both),
        "run": rung(wanted.rung, **{**both, **wanted.changes}),
    }


def scripts(name: str) -> dict[str, str]:
    """The texts to train: solution, untouched exercise, and the mistakes."""
    found = {"solution": SOLVED, "untouched": exercises.render(TEXT, DAY1[name].todo - 1)}
    for mistake, (_, old, new) in MISTAKES[name].items():
        assert SOLVED.count(old) == 1, f"{mistake}: {old!r}"
        found[mistake] = SOLVED.replace(old, new)
    return found


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each check, script and config, trained."""
    root = tmp_path_factory.mktemp("trained")
    every = [
        prepared(root / name / label / which, text, config)
        for name in DAY1
        for label, text in scripts(name).items()
        for which, config in configs(name).items()
        if which == "run" or label in ("solution", *MOVES_THE_STEP_BEFORE)
    ]
    train_together(every, CUDA_VISIBLE_DEVICES="")
    return root


@pytest.fixture
def checked(trained: Path, runs_root: Path, narrow_model: None):
    def of(name: str, label: str) -> Checked:
        before = label if label in MOVES_THE_STEP_BEFORE else "solution"
        run, against = Run(trained / name / label / "run"), Run(trained / name / before / "against")
        return check(name, run, against=against)

    return of


@pytest.mark.slow
@pytest.mark.parametrize("name", DAY1)
def test_solution_passes(checked, name: str) -> None:
    done = checked(name, "solution")
    found = verdicts(done)
    assert (found["correct"], found["mechanism"]) == (PASSED, PASSED), done


@pytest.mark.slow
@pytest.mark.parametrize("name", DAY1)
def test_untouched_exercise_fails_and_names_its_line(checked, name: str) -> None:
    done = checked(name, "untouched")
    found = verdicts(done)
    # Without a scaler, what is made to overflow on purpose ends the training.
    correct = FAILED if name == "day1.scaler" else PASSED
    assert found == {"correct": correct, "mechanism": FAILED, "effect": UNMEASURABLE}, done
    (part,) = [part for part in done.parts if part.part == "mechanism"]
    assert f"TODO {DAY1[name].todo} is still open" in part.evidence
    assert part.look_at.startswith("exercises/train.py, line ")
    assert f"TODO {DAY1[name].todo}" in part.look_at


CASES = [(name, mistake) for name in MISTAKES for mistake in MISTAKES[name]]


@pytest.mark.slow
@pytest.mark.parametrize("name, mistake", CASES, ids=lambda value: value.replace(" ", "-"))
def test_mistake_fails_in_the_right_part(checked, name: str, mistake: str) -> None:
    done = checked(name, mistake)
    part = MISTAKES[name][mistake][0]
    assert verdicts(done)[part] == FAILED, done
    assert not done.passed
    if part == "mechanism":
        assert verdicts(done)["correct"] == PASSED or "whole model" in mistake, done
    assert any(each.look_at for each in done.parts if each.verdict == FAILED), done


@pytest.mark.slow
def test_effect_is_not_measurable_without_units(checked) -> None:
    done = checked("day1.device", "solution")
    assert verdicts(done)["effect"] == UNMEASURABLE
    assert not done.passed and not done.failed
    assert progress().checks.set_index("check").loc["day1.device", "state"] == UNMEASURABLE


AS_SOLVED = """    accelerator = torch.accelerator.current_accelerator(check_available=True)
    device = accelerator if cfg.device == "auto" and accelerator else torch.device("cpu")
"""
BY_CUDA = """    wanted = cfg.device == "auto" and torch.cuda.is_available()
    device = torch.device("cuda:0" if wanted else "cpu")
"""
LAP = '            meter.lap("loss")\n'
MODEL = "    model = model.to(device)\n"


@pytest.mark.parametrize("old, new, device", [
    ("", "", "cuda"),
    (AS_SOLVED, BY_CUDA, "cuda"),
    (LAP, f"            print(loss.item(), float(loss), loss)\n{LAP}", "cuda"),
    (MODEL, '    model = model.cuda() if device.type == "cuda" else model\n', "cuda"),
    (MODEL, "", ""),
])  # fmt: skip
def test_rehearsal_takes_any_way_to_reach_the_device(old, new, device, capsys) -> None:
    assert old in SOLVED
    cfg = rung("device", **(TINY | {"data": "synthetic"}))
    found, error = device_of_first_step(SOLVED.replace(old, new, 1) if old else SOLVED, cfg)
    assert (found, bool(error)) == (device, not device), error
    found, error = device_of_first_step(SOLVED.replace(old, new, 1), replace(cfg, device="cpu"))
    assert (found, error) == ("cpu", "")
    assert capsys.readouterr().out == ""


def test_every_check_has_mistakes_that_it_must_find() -> None:
    assert all(len(MISTAKES[name]) >= 3 for name in DAY1)


@pytest.mark.parametrize("found, faster, verdict", [
    (Ratio(1.5, 1.4, 1.6), True, PASSED),
    (Ratio(1.1, 0.9, 1.3), True, UNMEASURABLE),
    (Ratio(0.8, 0.7, 0.9), True, FAILED),
    (Ratio(1.0, 0.98, 1.02), False, PASSED),
    (Ratio(0.97, 0.9, 1.1), False, UNMEASURABLE),
    (Ratio(0.86, 0.84, 0.88), False, FAILED),
])  # fmt: skip
def test_effect_is_judged_by_its_interval(found: Ratio, faster: bool, verdict: str) -> None:
    assert judge(found, faster=faster).verdict == verdict


@pytest.mark.parametrize("held, found, verdict", [
    ("", Ratio(0.87, 0.8, 0.9), FAILED),
    ("Python sets the pace", Ratio(0.87, 0.8, 0.9), UNMEASURABLE),
    ("Python sets the pace", Ratio(1.5, 1.4, 1.6), PASSED),
])  # fmt: skip
def test_a_gpu_that_waited_for_python_fails_nothing(monkeypatch, held, found, verdict) -> None:
    monkeypatch.setattr(checks, "ratio", lambda *_: found)
    monkeypatch.setattr(checks, "held_by_host", lambda _: held)
    wanted = replace(DAY1["day1.amp"], limits=lambda run: "")
    part = checks._effect(wanted, None, None)
    assert part.verdict == verdict
    assert (held in part.evidence) == (verdict == UNMEASURABLE) or not held


def test_unknown_check_lists_the_known() -> None:
    with pytest.raises(ValueError, match="no check 'day1.amq': there are day1.device, day1.amp"):
        check("day1.amq")


def test_html_escapes_and_says_the_verdict_in_words() -> None:
    part = checks.Part("effect", UNMEASURABLE, "<nothing>")
    done = Checked("day1.amp", "title", (part,))
    page = done._repr_html_()
    assert "&lt;nothing&gt;" in page and UNMEASURABLE in page
    assert "not measurable here" in repr(done)
