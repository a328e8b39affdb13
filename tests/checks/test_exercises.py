"""Exercises from solutions: seams, views that run, and learners' edits that are never lost."""

import json
import re
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from course.__main__ import app
from course.checks import discovery, exercise_files, exercises, todo
from course.checks.exercises import Seam, SeamError
from course.checks.shared_progress import save_check
from course.checks.todo import show_todo
from course.config import rung
from course.jobs import plan
from course.runs.run import PROJECT

TEXT = (exercises.SOLUTIONS / "train.py").read_text()
NAMES = exercises.names(TEXT)
TOTAL = len(NAMES)
LATER = "train_sharded.py"
EDIT = "# an edit of the learner's, naïve and with spaces at its end  \r\n"

SMALL = """\
def f():
    # >>> adding: add
    return 1 + 1
    # --- before
    # return 0
    # <<<


# >>> printing: print
print(f())
# <<<
"""


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create solutions/ and unedited exercises/ to work in; return the path of the exercise."""
    for name, text in (("SOLUTIONS", TEXT), ("EXERCISES", exercises.render(TEXT, ()))):
        folder = tmp_path / name.lower()
        folder.mkdir()
        (folder / "train.py").write_text(text)
        monkeypatch.setattr(exercises, name, folder)
    for module in (exercises, plan):
        monkeypatch.setattr(module, "PROJECT", tmp_path)
    monkeypatch.setattr(todo, "SOLUTIONS", exercises.SOLUTIONS)
    return tmp_path / "exercises" / "train.py"


def backups(exercise: Path) -> list[Path]:
    return sorted(path for path in exercise.parent.iterdir() if path != exercise)


def filled_by_hand(name: str) -> str:
    """Return the view before an exercise, with its solution typed in as a learner would."""
    lines: list[str] = []
    for item in exercises.parse(TEXT):
        if not isinstance(item, Seam):
            lines.append(item)
        elif item.name == name:
            lines += [item.shown(False)[0], *item.solution]
        else:
            lines += item.shown(item.name in NAMES[: NAMES.index(name)])
    return "\n".join(lines) + "\n"


BROKEN = {
    "nested": (
        "# >>> one: a\n# >>> two: b\n# <<<\n# <<<",
        2,
        "inside the seam of 'one', line 1: end that one",
    ),
    "unclosed": ("x = 1\n# >>> one: a\ny = 2", 2, "the seam of 'one' has no end: add # <<<"),
    "stray end": ("# >>> one: a\n# <<<\n\n    # <<<", 4, "not '# <<<'"),
    "no task": ("# >>> one:\n# <<<", 1, "expected '# >>> name: task'"),
    "a number": ("# >>> 3: c\n# <<<", 1, "expected '# >>> name: task'"),
}


@pytest.mark.parametrize("text, line, problem", BROKEN.values(), ids=BROKEN)
def test_bad_markers_are_refused_with_file_and_line(text: str, line: int, problem: str) -> None:
    with pytest.raises(SeamError, match=f"^solutions/script.py, line {line}: ") as caught:
        exercises.parse(text, "script.py")
    assert problem in str(caught.value)


def test_small_solution_in_its_views() -> None:
    opened = "def f():\n    # TODO adding: add\n    return 0\n\n\n"
    filled = "def f():\n    # TODO adding, solved: add\n    return 1 + 1\n\n\n"
    printed = "# TODO printing, solved: print\nprint(f())\n"
    assert exercises.render(SMALL, ()) == f"{opened}# TODO printing: print\n"
    assert exercises.render(SMALL, ["adding"]) == f"{filled}# TODO printing: print\n"
    assert exercises.render(SMALL, ["printing"]) == opened + printed
    assert exercises.render(SMALL) == filled + printed


def test_before_keeps_depth_and_empty_lines() -> None:
    text = "  # >>> a: a\n  # --- before\n  # if x:\n  #     y = 1\n\n  # z = 2\n  # <<<\n"
    assert exercises.render(text, ()) == "  # TODO a: a\n  if x:\n      y = 1\n\n  z = 2\n"


def test_exercises_have_one_script_and_the_order_of_the_labs() -> None:
    of_scripts = [exercises.names(path.read_text()) for path in exercises.solutions()]
    assert sorted(sum(of_scripts, [])) == sorted(discovery.exercises())
    for names in of_scripts:
        assert names == [name for name in discovery.exercises() if name in names]
    assert exercises.solution_of("offloading") == LATER
    assert exercises.place("grad_scaler") == f"4 of {TOTAL} in train.py"
    assert exercises.upto("grad_scaler") == ["device", "profiler", "amp", "grad_scaler"]
    problem = r"no exercise 'ampp' \(did you mean 'amp'\?\): train.py has device, .*; train_"
    with pytest.raises(ValueError, match=problem):
        exercises.solution_of("ampp")


@pytest.mark.parametrize("solved", range(TOTAL + 1))
def test_view_compiles_and_shows_what_is_open(solved: int) -> None:
    view = exercises.render(TEXT, NAMES[:solved])
    compile(view, "view.py", "exec")
    assert not any(exercises.MARKER.match(line) for line in view.splitlines())
    for number, name in enumerate(NAMES):
        assert (f"# TODO {name}: " in view) == (number >= solved)
        assert (f"# TODO {name}, solved: " in view) == (number < solved)


def test_committed_exercises_are_the_generated_ones() -> None:
    assert exercise_files.drifted() == []


def test_drift_is_noticed(workshop: Path) -> None:
    assert exercise_files.drifted() == []
    workshop.write_text(workshop.read_text().replace("model.train()", "model.eval()"))
    assert exercise_files.drifted() == ["train.py"]
    workshop.unlink()
    assert exercise_files.drifted() == ["train.py"]
    workshop.with_name("orphan.py").touch()
    assert exercise_files.drifted() == ["orphan.py", "train.py"]


def test_a_missing_exercise_names_the_command_that_restores_it(workshop: Path) -> None:
    workshop.unlink()
    workshop.parent.rmdir()
    for read in (exercises.all_states, lambda: todo.show_todo("device")):
        with pytest.raises(ValueError, match="train.py.*: course exercises --restore writes"):
            read()
    assert exercise_files.restore() == ["train.py"] and exercise_files.restore() == []
    assert exercise_files.drifted() == []


def test_what_a_learner_wrote_in_a_clone_is_no_drift(workshop: Path) -> None:
    git = ["git", "-C", str(workshop.parent.parent)]
    for words in (["init", "-q"], ["add", "."]):
        subprocess.run([*git, *words], check=True)
    workshop.write_text(exercises.render(TEXT, ["device"]) + EDIT)
    (workshop.parent / ".ipynb_checkpoints").mkdir()
    (workshop.parent / ".ipynb_checkpoints" / "train-checkpoint.py").touch()
    assert exercise_files.drifted() == []
    subprocess.run([*git, "add", "exercises/train.py"], check=True)
    assert exercise_files.drifted() == ["train.py"]  # about to be committed


def test_an_exercise_in_another_encoding_is_named_and_can_be_replaced(workshop: Path) -> None:
    saved = workshop.read_bytes().replace(b"import", "# café\nimport".encode("latin-1"), 1)
    line = saved[: saved.index(b"\xe9")].count(b"\n") + 1
    workshop.write_bytes(saved)
    message = f"exercises/train.py, line {line}: the byte 0xe9 is no text in UTF-8: save"
    for read in (exercises.states, lambda: plan.plan_run(workshop, rung("baseline", quick=True))):
        with pytest.raises(ValueError, match=message):
            read()
    assert exercise_files.write(()).read_bytes() == saved  # the backup
    assert {row["state"] for row in exercises.states()} == {"open"}


def test_edits_are_backed_up_byte_for_byte(workshop: Path) -> None:
    edited = workshop.read_bytes() + EDIT.encode()
    workshop.write_bytes(edited)
    backup = exercise_files.write(NAMES[:2])
    assert backups(workshop) == [backup]
    assert backup.read_bytes() == edited
    assert workshop.read_text() == exercises.render(TEXT, NAMES[:2])


@pytest.mark.parametrize("solved", range(TOTAL + 1))
def test_untouched_view_needs_no_backup(workshop: Path, solved: int) -> None:
    exercise_files.write(NAMES[:solved])
    assert exercise_files.write(NAMES[: TOTAL - solved]) is None
    assert backups(workshop) == []
    assert workshop.read_text() == exercises.render(TEXT, NAMES[: TOTAL - solved])


def test_catching_up_writes_the_scripts_that_it_is_about(
    workshop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    solution = (PROJECT / "solutions" / LATER).read_text()
    (exercises.SOLUTIONS / LATER).write_text(solution)
    later = workshop.with_name(LATER)
    assert exercise_files.reset() == {"train.py": None, LATER: None}
    later.write_bytes(EDIT.encode())
    assert exercise_files.catch_up("grad_scaler") == {
        "train.py": None
    }  # Day 4's edits are unchanged
    assert later.read_bytes() == EDIT.encode()
    first = exercises.names(solution)[0]
    backup = exercise_files.catch_up(first)[LATER]
    assert workshop.read_text() == exercises.render(TEXT, exercises.upto(first))
    assert later.read_text() == exercises.render(solution, [first])
    assert backup.read_bytes() == EDIT.encode()
    rows = {row["todo"]: row["script"] for row in exercises.all_states()}
    assert [*rows] == [name for name in discovery.exercises() if name in rows]
    assert {*rows} == {*NAMES, *exercises.names(solution)} and rows[first] == LATER


MINE = """    # TODO amp: run the forward pass under autocast in the config's precision
    formats = {"bf16": torch.bfloat16, "fp16": torch.float16}
    wanted = formats.get(cfg.precision)
    autocast = torch.autocast(device.type, wanted, enabled=wanted is not None)
"""


def with_own_amp(view: str) -> str:
    """Fill `amp` in a way of the learner's own, and add a function."""
    first, _, rest = view.partition("    # TODO amp")
    _, before, rest = rest.partition("    autocast = nullcontext()\n")
    assert before
    return first + MINE + rest.replace("def mixup(", "def mine():\n    pass\n\n\ndef mixup(")


def test_catching_up_keeps_what_the_learner_has_filled(workshop: Path) -> None:
    mine = with_own_amp(exercises.render(TEXT, ["device"]))
    workshop.write_text(mine)
    backup = exercise_files.catch_up("channels_last")["train.py"]
    assert backup.read_text() == mine
    solution = exercises.render(TEXT, exercises.upto("channels_last"))
    first, _, rest = solution.partition("    # TODO amp, solved")
    last = "enabled=cfg.precision in HALF)\n"
    rest = rest[rest.index(last) + len(last) :]
    expected = first + MINE + rest.replace("def mixup(", "def mine():\n    pass\n\n\ndef mixup(")
    assert workshop.read_text() == expected, (
        "only grad_scaler, channels_last and profiler were open"
    )


def test_catching_up_to_less_takes_nothing_away(workshop: Path) -> None:
    exercise_files.catch_up(NAMES[8])
    assert exercise_files.catch_up(NAMES[2]) == {"train.py": None}
    assert workshop.read_text() == exercises.render(TEXT, NAMES[:9])
    assert exercise_files.reset()["train.py"] is None  # a view needs no backup
    assert workshop.read_text() == exercises.render(TEXT, ())


@pytest.mark.parametrize("name", NAMES)
def test_catching_up_completes_every_exercise_around_one(workshop: Path, name: str) -> None:
    workshop.write_text(filled_by_hand(name))
    exercise_files.catch_up(NAMES[-1])
    states = {row["todo"]: row["state"] for row in exercises.states()}
    assert states.pop(name) in ("edited", "solved") and {*states.values()} == {"given"}
    marks = re.compile(r"(# TODO \w+), solved")
    solved = marks.sub(r"\1", exercises.render(TEXT))
    assert marks.sub(r"\1", workshop.read_text()) == solved


def test_catching_up_replaces_what_failed_its_check(workshop: Path, runs_root: Path) -> None:
    wrong = with_own_amp(exercises.render(TEXT, ["device"])).replace("is not None", "is None")
    workshop.write_text(wrong)
    outcome = {"correct": "failed", "mechanism": "", "effect": ""}
    save_check("amp", outcome | {"script": exercises.digest(wrong)})
    workshop.write_text(wrong.replace("is None", "is not None"))  # mended since
    exercise_files.catch_up("grad_scaler")
    assert MINE in workshop.read_text()
    workshop.write_text(wrong)
    backup = exercise_files.catch_up("grad_scaler")["train.py"]
    assert backup.read_text() == wrong and "formats = {" not in workshop.read_text()
    assert "def mine():" in workshop.read_text()
    assert [row["state"] for row in exercises.states()][:3] == ["given"] * 3


def test_the_command_prints_what_it_filled_and_kept(workshop: Path) -> None:
    workshop.write_text(with_own_amp(exercises.render(TEXT, ["device"])))
    shown = CliRunner().invoke(app, ["exercises", "--upto", "channels_last"])
    assert shown.exit_code == 0, shown.output
    words = "filled profiler, grad_scaler, channels_last; kept device, amp; the file as it was is "
    assert words in shown.output.replace("\n", " ")
    shown = CliRunner().invoke(app, ["exercises", "amp", "device", "--reset"])
    words = "emptied device, amp; kept profiler, grad_scaler, channels_last; the file as it was is "
    assert words in shown.output.replace("\n", " ")
    shown = CliRunner().invoke(app, ["exercises", "profiler", "amp", "--json"])
    states = {row["todo"]: row["state"] for row in json.loads(shown.output)}
    assert states == {"profiler": "given", "amp": "open"}
    error = CliRunner().invoke(app, ["exercises", "amp", "--upto", "amp"]).exception
    assert "--upto NAME takes neither" in str(error)


def test_what_was_given_counts_as_given_until_the_learner_changes_it(workshop: Path) -> None:
    workshop.write_text(filled_by_hand("device"))  # with the solution's lines
    exercise_files.catch_up("amp")

    def states() -> list[str]:
        return [row["state"] for row in exercises.states()][:3]

    assert states() == ["solved", "given", "given"]
    given = workshop.read_text()
    workshop.write_text(given.replace("=cfg.precision in HALF", "=bool(cfg.precision in HALF)"))
    assert states() == ["solved", "given", "edited"]
    exercise_files.reset(["amp"])
    assert states() == ["solved", "given", "open"]
    by_hand = "\n".join(line for line in given.splitlines() if "# TODO amp, solved" not in line)
    workshop.write_text(by_hand)
    assert states() == ["solved", "given", "solved"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("others", [NAMES, ()], ids=["all filled", "alone"])
def test_one_exercise_is_reset(workshop: Path, name: str, others: list[str]) -> None:
    """Filled by hand, without its comment; what is next to it stays."""
    lines = exercises.render(TEXT, {*others, name}).splitlines()
    workshop.write_text("\n".join(line for line in lines if f"# TODO {name}, " not in line) + EDIT)
    (backup,) = exercise_files.reset([name]).values()
    assert backup.read_text().endswith(EDIT.replace("\r", ""))
    wanted = exercises.render(TEXT, {*others} - {name}).removesuffix("\n") + EDIT
    assert workshop.read_text() == wanted.replace("\r", "")
    assert exercise_files.reset([name]) == {"train.py": None} or others


def test_a_reset_that_cannot_find_the_lines_changes_nothing(workshop: Path) -> None:
    view = exercises.render(TEXT, ["device"])
    first, _, rest = view.partition("    # TODO amp")
    merged = f"{first}    autocast = both = mine(cfg)\n{rest[rest.index('    for epoch') :]}"
    for text in ("print(1)\n", merged):  # two TODOs, and all between them, are one line now
        workshop.write_text(text)
        with pytest.raises(ValueError, match="changed too much to find the lines of amp: course"):
            exercise_files.reset(["amp"])
        with pytest.raises(ValueError, match="there is no exercise 'apm'"):
            exercise_files.reset(["device", "apm"])
        assert workshop.read_text() == text and backups(workshop) == []


def test_an_exercise_with_a_syntax_error_is_reset(workshop: Path) -> None:
    mine = with_own_amp(exercises.render(TEXT, ["device"]))
    broken = mine.replace("wanted = formats.get(", "wanted = = formats.get(")
    workshop.write_text(broken)
    assert exercise_files.reset(["amp"])["train.py"].read_text() == broken
    expected = exercises.render(TEXT, ["device"])
    assert workshop.read_text() == expected.replace(
        "def mixup(", "def mine():\n    pass\n\n\ndef mixup("
    )


def test_every_setting_that_a_todo_reads_is_named_before_its_solution_is_shown() -> None:
    """By its title, the lines to replace, or hints 1 and 2: no one can guess `cfg.offload`."""
    hints, missing = todo.all_hints(), []
    for path in exercises.solutions():
        for exercise in exercises.names(path.read_text(), path.name):
            seams = exercises.seams(path.read_text(), path.name, exercise)
            shown = [line for seam in seams for line in (seam.title, *seam.before)]
            shown += [hints[exercise]["nudge"], *hints[exercise]["calls"]]
            solution = "\n".join(line for seam in seams for line in seam.solution)
            for name in sorted({*re.findall(r"\bcfg\.\w+", solution)}):
                if not re.search(rf"{re.escape(name)}\b", "\n".join(shown)):
                    missing.append(f"{exercise}: {name}")
    assert not missing


def test_refused_write_changes_nothing(workshop: Path) -> None:
    workshop.write_text(EDIT)
    before = workshop.read_bytes()
    with pytest.raises(ValueError, match="there is no exercise 'apm'"):
        exercise_files.catch_up("apm")
    with pytest.raises(ValueError, match="no exercise 'trian.py': there are train.py"):
        exercise_files.write((), "trian.py")
    assert workshop.read_bytes() == before and backups(workshop) == []


@pytest.mark.parametrize("solved", range(TOTAL + 1))
def test_states_of_a_view(workshop: Path, solved: int) -> None:
    exercise_files.write(NAMES[:solved])
    states = [row["state"] for row in exercises.states()]
    assert states == ["given"] * solved + ["open"] * (TOTAL - solved)


@pytest.mark.parametrize("todo", NAMES)
def test_todo_filled_by_hand_is_not_open(workshop: Path, todo: str) -> None:
    workshop.write_text(filled_by_hand(todo))
    states = {row["todo"]: row["state"] for row in exercises.states()}
    assert states.pop(todo) in ("edited", "solved")
    before = NAMES[: NAMES.index(todo)]
    assert states == {name: "given" if name in before else "open" for name in states}


@pytest.mark.parametrize(
    "line, edited",
    [
        ('device = torch.device("cpu")', 'device = torch.device("cpu") if True else None'),
        (
            "# TODO device: move the model to the device",
            "# TODO device: move the model to the device\n    model = model.to(device)",
        ),
    ],
)
def test_todo_that_is_begun_is_edited(workshop: Path, line: str, edited: str) -> None:
    view = exercises.render(TEXT, ())
    assert line in view
    workshop.write_text(view.replace(line, edited))
    assert exercises.states()[0]["state"] == "edited"


def test_show_todo_shows_every_place(workshop: Path) -> None:
    text = f"{show_todo('device')!r}\n"
    lines = workshop.read_text().splitlines()
    marks = [number for number, line in enumerate(lines, 1) if "# TODO device: " in line]
    assert len(marks) == 3
    for mark in marks:
        assert f"exercises/train.py, line {mark}\n    {lines[mark - 1].strip()}\n" in text


def test_show_todo_that_is_filled_says_so(workshop: Path) -> None:
    workshop.write_text(workshop.read_text().replace("# TODO device", "# done"))
    assert "TODO device is filled" in repr(show_todo("device"))


@pytest.mark.parametrize("name", NAMES)
def test_hints_tell_more_and_more(name: str, capsys: pytest.CaptureFixture) -> None:
    todo = show_todo(name)
    for layer in (1, 2, 3):
        todo.hint(layer)
        assert len(capsys.readouterr().out.strip()) > 20
    page = todo._repr_html_()
    assert page.count("<details>") == 3 and "<details open" not in page  # collapsed
    for seam in (item for item in exercises.parse(TEXT) if isinstance(item, Seam)):
        if seam.name == name:
            lines = [line.removesuffix("  # fmt: skip").strip() for line in seam.solution]
            assert all(line in todo.lines for line in lines)
    # An earlier hint does not contain a later one.
    assert not [line for line in todo.lines.splitlines() if len(line) > 30 and line in todo.nudge]
    with pytest.raises(ValueError, match="choose 1, 2 or 3"):
        todo.hint(4)


def test_show_todo_that_is_not_there(workshop: Path) -> None:
    with pytest.raises(ValueError, match="there is no exercise 'apm'"):
        show_todo("apm")
