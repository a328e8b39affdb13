"""Checks: no wrong answer passes, no right one fails, and each is told its cause.

All are trained for real, on a network and images small enough to train them in one process, and in
one pair of ranks. So are the solution, and the exercise with the TODO still open.
"""

import re
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from answers import RIGHT, UNSEEN, WRONG
from answers.lines import Answer
from check_helpers import ranks_training, text_of, verdicts, view_of
from job_helpers import prepared, train_together
from narrow import SHALLOW

from course.checks import discovery, exercises
from course.checks.progress import progress
from course.checks.verdict import FAILED, PASSED, UNMEASURABLE, UNTIMED, Checked, check
from course.config import Config, rung
from course.data.formats import convert
from course.runs.run import Run

pytestmark = pytest.mark.slow
EVERY = discovery.checks()
CHECKS = {wanted.todo: name for name, wanted in EVERY.items()}
SMALL = {
    "quick": True,
    "model": "resnet18",
    "data": "imagenet",
    "image_px": 32,
    "batch_size": 4,
    "steps": 5,
    "warmup_steps": 4,
    "val_steps": 1,
    "lr": 0.001,
}
LAST_OF_FIRST = 16  # TODOs of train.py
# Where checks count messages of several blocks; so do those of prefetching. Of train.py's ranks a
# shallow network would tell too little: both validate equally well, whatever they are shown.
DEEP = ("tensor", "pipeline")
HALVES = ("day1.amp", "day1.scaler")  # in the others bf16, often emulated, would cost time alone
SHUFFLED = ("day2.data_parallel", "day3.shares")  # which a second epoch shows
VALIDATION = re.compile("valid|running|day2.once")  # wrong answers that it alone shows
FP32 = {"precision": "fp32"}
SHORTER = {"steps": 3, "warmup_steps": 2}
# 32 images to train on, 15 to validate on: each rank's share is 8 or 7, more than two batches of 4
# of one process hold. At 32 px the last BatchNorms would see four numbers, and losses jump.
RANKS = SMALL | {
    "seed": 1,  # of it both halves of the first batch have gradients like the whole's: 0.97 times
    "image_px": 64,
    "batch_size": 8,
    "epochs": 2,
    "steps": 2,
    "warmup_steps": 1,
    "val_steps": 2,
    "val_images": 15,
    "collective_timeout_s": 30,
}
# What a rehearsal alone judges is held by test_sharding and test_mixing for every answer, without
# a training: so many of each TODO show here that a check passes on what they say.
JUDGED, OF_THESE = (10, 11, 12, 13), 2


def trained_ones(answers: dict[str, Answer]) -> list[str]:
    """The labels of all answers, but for what is left out by OF_THESE."""
    judged = [label for label, answer in answers.items() if answer.todo in JUDGED]
    by_todo = {todo: [x for x in judged if answers[x].todo == todo] for todo in JUDGED}
    left_out = {label for labels in by_todo.values() for label in labels[OF_THESE:]}
    return [label for label in answers if label not in left_out]


SEEN = [label for label in trained_ones(WRONG) if label not in UNSEEN]
OTHERS = trained_ones(RIGHT)
TOLD = [label for label in SEEN if WRONG[label].said]


class Trial(NamedTuple):
    """A script to train, and the check that looks at it."""

    check: str
    text: str
    config: Config
    before: Config  # of the run of the step before
    gpus: int
    text_before: str


def name_of(answer: Answer) -> str:
    """The check that looks at it: that of its TODO, or of the rung that shows it."""
    return f"day1.{answer.config['rung']}" if "rung" in answer.config else CHECKS[answer.todo]


def trial(name: str, text: str, own: dict, ranks: int = 1) -> Trial:
    """With fields of the config that it needs; those of a check otherwise, small."""
    wanted = EVERY[name]
    gpus = max(ranks, wanted.gpus)
    if wanted.rung == "restarted":  # of its own size, since steps are counted
        values = {
            **SMALL,
            **FP32,
            "collective_timeout_s": 10,
            **wanted.settings,
            "data": "imagenet",
        }
        values["model"] = SHALLOW[values["model"]]
        run, before = rung(wanted.rung, **values | wanted.changes), rung(wanted.against, **values)
        return Trial(name, text, run, before, gpus, view_of(wanted.todo))
    values = {**wanted.settings, **(RANKS if gpus > 1 else SMALL)}
    of_first = wanted.todo <= LAST_OF_FIRST
    if not of_first:  # its networks are small already, and its batches told by sizes
        kept = ("model", "image_px", "batch_size", "val_steps")
        values |= {name: wanted.settings[name] for name in kept}
    if not (name == "day4.prefetch" or wanted.rung in DEEP or (of_first and gpus > 1)):
        values["model"] = SHALLOW[values["model"]]
    # Workers crop otherwise: so many pixels that it matters little. Those of the validation would
    # be started to load a batch; how its loader was made is seen all the same.
    if name == "day2.dataloader":
        values |= {"image_px": 64, "batch_size": 8, "val_steps": 0}
    else:  # whose workers nobody looks at: to start four takes longer than to train
        values |= {"workers": 0, "persistent_workers": False}
    if wanted.rung == "shards":  # both runs see other images: of more of them losses differ less
        values |= {"image_px": 64, "batch_size": 16}
    if gpus > 1 and name not in SHUFFLED:
        values["epochs"] = 1
    own = {key: value for key, value in own.items() if key not in ("rung", "data")}
    values["lr"] = own.get("lr", values["lr"])  # of both runs
    if gpus > 1:  # its own are of more files than there are
        own = {key: value for key, value in own.items() if not key.startswith("val_")}
    if name not in HALVES and "precision" not in own:
        values |= FP32
    changed = {**values, **wanted.emulated, **wanted.changes, **own}
    traced = changed.get("profile_steps") or values.get("profile_steps")
    is_fp16 = "fp16" in (changed.get("precision"), values.get("precision"))
    if gpus == 1 and not (traced or is_fp16):
        changed |= SHORTER  # in fp16 an overflow is planted, which takes more steps
        values |= SHORTER
    if changed.get("profile_steps", 0) > 1:
        changed |= {"steps": 6, "warmup_steps": 5}
    if not changed.get("workers", True):
        changed["persistent_workers"] = False
    changed["overflow_step"] = int(changed.get("precision") == "fp16")
    run, before = rung(wanted.rung, **changed), rung(wanted.against, **values)
    return Trial(name, text, run, before, gpus, view_of(wanted.todo))


def answered(answer: Answer, *, wrong: bool) -> Trial:
    """Most of what is wrong shows in the first epoch's training, and needs no more to be told."""
    text, name = text_of(answer), name_of(answer)
    found = trial(name, text, answer.config, answer.ranks)
    if wrong and not VALIDATION.search(answer.said + name):
        less = {"val_steps": 0}
        if name == "day2.data_parallel":
            less["epochs"] = answer.config.get("epochs", 1)
        found = found._replace(config=replace(found.config, **less))
    return found._replace(text_before=text) if answer.both else found


@cache  # two seconds: for the one process that trains them
def trials() -> dict[str, Trial]:
    """All scripts that are trained, by label."""
    found = {label: answered(WRONG[label], wrong=True) for label in SEEN}
    found |= {label: answered(RIGHT[label], wrong=False) for label in OTHERS}
    for name, wanted in EVERY.items():
        found[f"solution of {name}"] = trial(name, view_of(wanted.todo), {})
        text_before = view_of(wanted.todo, wanted.todo - 1)  # and of the step before, too
        found[f"untouched {name}"] = trial(name, text_before, {})._replace(text_before=text_before)
        text = view_of(wanted.todo, wanted.todo)  # later TODOs are open, as a learner has it
        found[f"so far {name}"] = trial(name, text, {})._replace(text_before=text_before)
    return found


@pytest.fixture(scope="module")
def trained(
    tmp_path_factory: pytest.TempPathFactory, tiny_set: Path, small_set: Path
) -> dict[str, tuple[Run, Run]]:
    """Each trial's run, and that of the step before; what is the same trains once."""
    root = tmp_path_factory.mktemp("answers")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COURSE_DATA", str(root / "data" / "default"))  # beside it shards are put
        patch.setattr(convert, "MIN_PART", 4)
        convert.convert("shards", small_set)
    runs: dict[tuple[str, Config, int], Run] = {}

    def made(text: str, config: Config, gpus: int, data: Path) -> Run:
        config = replace(config, data_root=str(data))
        key = (text, config, gpus)
        if key not in runs:
            script = f"exercises/{config.script}"
            runs[key] = prepared(root / str(len(runs)), text, config, gpus=gpus, script=script)
        return runs[key]

    def pair(each: Trial) -> tuple[Run, Run]:
        # Which gradients vanish in fp16 depends on the images; else decoding is not the subject.
        is_fp16 = each.check in HALVES and "fp16" in (each.config.precision, each.before.precision)
        ours = tiny_set if is_fp16 and each.gpus == 1 else small_set
        before = tiny_set if is_fp16 else small_set
        return (
            made(each.text, each.config, each.gpus, ours),
            made(each.text_before, each.before, 1, before),
        )

    found = {label: pair(each) for label, each in trials().items()}
    alone = [run for (_, _, gpus), run in runs.items() if gpus == 1]
    # A script that raises may leave behind what keeps Dynamo from looking: the compiled ones first,
    # here and on ranks.
    alone.sort(key=lambda run: not run.config.compile)
    with ExitStack() as stack:
        for ranks in {gpus for _, _, gpus in runs} - {1}:
            theirs = [run for (_, _, gpus), run in runs.items() if gpus == ranks]
            theirs.sort(key=lambda run: not run.config.compile)
            stack.enter_context(ranks_training(theirs, ranks, 19_000 + 500 * ranks))
        env = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "NO_HOST_MEMORY": "1"}
        train_together(alone, COURSE_DATA=str(root / "data" / "default"), **env)
    return found


@pytest.fixture(scope="module")
def said() -> dict[str, Checked]:
    """What the checks have said so far, by trial."""
    return {}


@pytest.fixture
def checked(
    trained: dict[str, tuple[Run, Run]],
    said: dict[str, Checked],
    runs_root: Path,
    narrow_model: None,
):
    def of(label: str, *, again: bool = False) -> Checked:
        run, against = trained[label]
        if again or label not in said:
            said[label] = check(trials()[label].check, run, against=against)
        return said[label]

    return of


def parts_that_failed(done: Checked) -> list[str]:
    return [part.part for part in done.parts if part.verdict == FAILED]


named = pytest.mark.parametrize("name", EVERY)


@named
def test_the_solution_passes(checked, name: str) -> None:
    done = checked(f"solution of {name}")
    found = verdicts(done)
    assert (found["correct"], found["mechanism"]) == (PASSED, PASSED), done
    assert (found["effect"] == UNTIMED) == (not EVERY[name].timed)


@named
def test_a_check_passes_while_later_todos_are_open(checked, name: str) -> None:
    done = checked(f"so far {name}")
    assert not {"correct", "mechanism"} & {*parts_that_failed(done)}, done


@named
def test_the_untouched_exercise_fails_and_names_its_line(checked, name: str) -> None:
    done = checked(f"untouched {name}")
    assert "mechanism" in parts_that_failed(done), done
    (part,) = [part for part in done.parts if part.part == "mechanism"]
    script = exercises.solution_of(EVERY[name].todo)
    assert part.look_at.startswith(f"exercises/{script}, line ")
    assert f"TODO {EVERY[name].todo}" in part.look_at
    # Several processes that join no group are refused, so that no one takes them for one run.
    ends = name == "day2.ranks"
    assert (f"TODO {EVERY[name].todo} is still open" in part.evidence) != ends
    if name != "day1.scaler":  # what overflows there reaches the loss, or a ReLU takes it for 0
        assert verdicts(done)["correct"] == (FAILED if ends else PASSED), done


def test_an_effect_that_cannot_be_measured_is_no_pass(checked) -> None:
    done = checked("solution of day1.device", again=True)  # and this learner's progress has it
    assert verdicts(done)["effect"] == UNMEASURABLE
    assert not done.passed and not done.failed
    assert progress().checks.set_index("check").loc["day1.device", "state"] == UNMEASURABLE


def test_what_a_processor_loads_is_said(checked) -> None:
    done = repr(checked("solution of day2.dataloader"))
    assert "num_workers=2" in done and "the same cores" in done and "pretended accelerator" in done


@pytest.mark.parametrize("label", SEEN, ids=lambda value: value.replace(" ", "-"))
def test_a_wrong_answer_fails_and_says_where(checked, label: str) -> None:
    done = checked(label)
    failed = [part for part in done.parts if part.verdict == FAILED]
    assert {part.part for part in failed} & {"correct", "mechanism"}, WRONG[label].why
    assert any(part.look_at for part in failed), done


@pytest.mark.parametrize("label", TOLD, ids=lambda value: value.replace(" ", "-"))
def test_the_cause_is_told(checked, label: str) -> None:
    done = checked(label)
    told = [part.evidence for part in done.parts if part.verdict == FAILED]
    assert any(re.search(WRONG[label].said, each) for each in told), told


@pytest.mark.parametrize("label", OTHERS, ids=lambda value: value.replace(" ", "-"))
def test_a_right_answer_passes(checked, label: str) -> None:
    done = checked(label)
    assert not {"correct", "mechanism"} & {*parts_that_failed(done)}, done


def test_there_are_enough_of_both() -> None:
    assert len(SEEN) >= 60 and len(OTHERS) >= 20
    assert {name_of(WRONG[label]) for label in SEEN} == {*EVERY}
