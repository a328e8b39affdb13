"""A TODO is filled when its code changed: not by space, comments or prints around it."""

import re

import pytest
from check_helpers import TEXT, TEXTS
from test_answers import RIGHT, WRONG, text_of

from course.checks import exercises
from course.checks.exercises import Seam, open_todos, render, render_like

NAMES = {name: exercises.names(text) for name, text in TEXTS.items()}
SEAMS = [
    pytest.param(name, number, id=f"{name} line {seam.line}")
    for name, text in TEXTS.items()
    for number, seam in enumerate(exercises.seams(text))
]
# None of these changes the training.
NEUTRAL = {
    "blank line": ("",),
    "comment": ("# a learner's: optimizer.step()",),
    "print": ("print(loss)",),
    "print of a call": ("print(images.to(device).shape)",),
    "print on one rank": ("if run.rank == 0:", "    print(epoch, loss.item())"),
    "counter": ("seen = seen + len(images)",),
    "list": ("losses.append(loss.item())",),
    "clock": ("begin = time.perf_counter()",),
    "memory": ("peak = torch.cuda.max_memory_allocated()",),
    "log": ("import logging", 'logging.info("%s %s", images.shape, loss)'),
    "assert": ("assert loss.isfinite()",),
    "docstring": ('"""A learner\'s."""',),
    "pass": ("pass",),
    "debugger": ("breakpoint()",),
    "wait": ("torch.cuda.synchronize()",),
    "end of the process group": ("distributed.destroy_process_group()",),
}
PLACES = (99, 1, 0)  # after the lines of a seam, before them, before its comment


def inserted(text: str, seam: int, lines: tuple[str, ...], place: int, solved: int) -> str:
    """Return the view with the first exercises filled, and lines inserted into one of its seams."""
    items, seams = [], iter(range(100))
    filled = exercises.names(text)[:solved]
    for item in exercises.parse(text):
        shown = item.shown(item.name in filled) if isinstance(item, Seam) else [item]
        if isinstance(item, Seam) and next(seams) == seam:
            shown[place:place] = [(item.indent + line).rstrip() for line in lines]
        items += shown
    return "\n".join(items) + "\n"


def assert_open(text: str, name: str, solved: int) -> None:
    filled = NAMES[name][:solved]
    assert open_todos(text, name) == {*NAMES[name]} - {*filled}
    if filled:  # of a script without a filled exercise, nothing is compared
        assert render_like(TEXTS[name], text) == render(TEXTS[name], filled)


def position(name: str, exercise: str) -> int:
    """Return the number of an exercise in its script, from 1."""
    return NAMES[name].index(exercise) + 1


@pytest.mark.parametrize("name, seam", SEAMS)
def test_space_and_prints_at_a_later_todo_fill_it_in_no_check(name: str, seam: int) -> None:
    """All pairs of a check, which is for the last solved TODO, and a seam of a later one."""
    lines = sum((NEUTRAL[kind] for kind in ("blank line", "comment", "print")), ())
    exercise = exercises.seams(TEXTS[name])[seam].name
    for solved in range(1, position(name, exercise)):
        assert_open(inserted(TEXTS[name], seam, lines, 99, solved), name, solved)


@pytest.mark.parametrize("kind", NEUTRAL)
def test_what_leaves_the_training_as_it_is_fills_no_todo(kind: str) -> None:
    for at, (name, seam) in enumerate((param.values for param in SEAMS), [*NEUTRAL].index(kind)):
        solved = position(name, exercises.seams(TEXTS[name])[seam].name) - 1
        text = inserted(TEXTS[name], seam, NEUTRAL[kind], PLACES[at % len(PLACES)], solved)
        assert_open(text, name, solved)


@pytest.mark.parametrize("name, seam", SEAMS)
def test_a_todo_without_its_comment_stays_open(name: str, seam: int) -> None:
    exercise = exercises.seams(TEXTS[name])[seam].name
    solved = position(name, exercise) - 1
    text = render(TEXTS[name], NAMES[name][:solved])
    assert_open(re.sub(rf"\n *# TODO {exercise}\b.*", "\n\n# print(loss)", text), name, solved)


@pytest.mark.parametrize("has_comment", [True, False])
@pytest.mark.parametrize("name, seam", SEAMS)
def test_one_filled_seam_fills_a_todo(name: str, seam: int, has_comment: bool) -> None:
    lines: list[str] = []
    wanted = exercises.seams(TEXTS[name])[seam]
    number = position(name, wanted.name)
    before = NAMES[name][: number - 1]
    for item in exercises.parse(TEXTS[name]):
        if item == wanted:
            lines += [item.shown(False)[0]] * has_comment + [*item.solution]
        else:
            lines += item.shown(item.name in before) if isinstance(item, Seam) else [item]
    assert_open("\n".join(lines) + "\n", name, number)


ELSEWHERE = ("compiles in every epoch", "no_sync only around backward", "clips each micro-batch")


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(
            answer,
            id=f"{answer['exercise']} {answer['label']}",
            marks=[pytest.mark.long] * (answer in WRONG),
        )
        for answer in RIGHT + WRONG
    ],
)
def test_an_answer_fills_its_todo_and_no_later_one(answer: dict) -> None:
    name, text = exercises.solution_of(answer["exercise"]), text_of(answer)
    filled = {answer["exercise"], *re.findall(r"# TODO (\w+), solved", text)}
    solved = max(position(name, exercise) for exercise in filled)
    assert_open(text, name, solved)
    if answer["label"] not in ELSEWHERE:  # as a learner writes it: under the TODO's comment
        assert_open(text.replace(", solved: ", ": "), name, solved)


@pytest.mark.parametrize(
    "todo, old, new",
    [
        ("device", 'device = torch.device("cpu")\n', 'device = "cpu"\n    device = "cuda"\n'),
        ("device", "move the model to the device\n", "\n    model.cuda()\n"),
        ("device", "move the batch to the device\n", "\n            images = images.cuda()\n"),
        ("channels_last", "store the weights in channels_last\n", """
    cfg.channels_last and model.to(LAST)
"""),
        ("profiler", "on the config's schedule\n", """
    p = torch.profiler.profile()
    p.start()
"""),
        ("data_parallel", "average the gradients over the ranks, overlapping with backward\n", """
    for weight in model.parameters():
        weight.register_hook(lambda gradient: gradient / run.world_size)
"""),
        ("distributed_validation", "add up the totals of all ranks\n", """
    distributed.reduce(totals, 0)
"""),
        ("distributed_validation", "val_sampler = None ", "val_sampler = [*range(len(sets.val))] "),
        ("distributed_validation", """    with averaged.validated() as validated:
        run.save_weights(validated)
""", """    if run.rank == 0:
        with averaged.validated() as validated:
            run.save_weights(validated)
"""),
        ("lr_range_test", "by a constant factor\n", """
    for group in optimizer.param_groups:
        group["lr"] = 1e-6
"""),
        ("compile", "and train the result\n", "\n    model.compile(mode=cfg.compile)\n"),
        ("compile", "and train the result\n", "\n    compiled = torch.compile(model)\n"),
    ],
)  # fmt: skip
def test_what_could_be_a_solution_fills_a_todo(todo: str, old: str, new: str) -> None:
    number = position("train.py", todo)
    text = render(TEXT, NAMES["train.py"][: number - 1])
    assert text.count(old) == 1
    assert_open(text.replace(old, new), "train.py", number)


def test_a_script_that_is_no_python_is_compared_by_its_lines() -> None:
    number = position("train.py", "grad_scaler")
    text = render(TEXT, NAMES["train.py"][: number - 1]).replace(
        "    loss.backward()", "    # mine\n\n    scaler.scale(loss"
    )
    with pytest.raises(SyntaxError):
        compile(text, "", "exec")
    assert_open(text, "train.py", number)
