"""The rehearsal: real notebooks through real papermill, and a report that tells how each went."""

import html
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from urllib.parse import unquote

import nbformat
import pytest
from job_helpers import (
    SCRIPTS,
    eventually,
    expect_no_process,
    launch,
    nothing_left,  # noqa: F401 - every test of this file ends its runs
    only,
    runs_root_at,
    start_python,
)

from course.jobs import sites
from course.jobs.warm import client, kernels
from course.runs import run as runs
from tools import rehearsal, rehearsal_page
from tools.rehearsal import Outcome, Rehearsal

LIMIT_MIN = 0.3  # for a cell: enough for a small run on a busy machine
MEASURES = """
from course.training.recorder import recording
with recording() as run:
    run.set(images_per_s=1234.5, machine="a <GPU> & more")
"""
LAUNCH = """from course import launch, rung, wait
run = launch({script!r}, rung("baseline", quick=True), site=site)
run"""
RAISES = """# a comment first
if 1 < 2:
    raise ValueError("<b>seven</b> & \\x1b[31mred")"""
DRAWS = """from course.charts.base import Picture
picture = Picture(2, 1, alt="nothing")
picture.subplots()
picture"""
HANGS = """import time
try:
    time.sleep(600)
finally:
    open("cleaned_up", "w").close()"""
COMMAND = """
import sys
from pathlib import Path

from tools import rehearsal as notebooks
from course.__main__ import main

notebooks.FOLDER = Path(sys.argv.pop(1))
main()
"""


def write_notebook(folder: Path, name: str, *cells: str, parameters: str = "") -> Path:
    """A notebook with the common parameters, and these cells."""
    first = nbformat.v4.new_code_cell(
        parameters or 'quick = True\nscript = ""\nsite = "local"', metadata={"tags": ["parameters"]}
    )
    rest = [nbformat.v4.new_code_cell(cell, id=f"cell-{n}") for n, cell in enumerate(cells)]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    book = nbformat.v4.new_notebook(cells=[first, *rest], metadata={"kernelspec": kernel})
    nbformat.write(book, folder / f"{name}.ipynb")
    return folder / f"{name}.ipynb"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Notebooks: one that passes, one that raises, one that hangs, and one behind them."""
    folder = tmp_path_factory.mktemp("notebooks")
    measures = folder / "measures.py"
    measures.write_text(MEASURES)
    write_notebook(folder, "a_passes", LAUNCH.format(script=str(measures)), "wait(run)")
    write_notebook(folder, "b_raises", RAISES, "print('not reached')")
    write_notebook(folder, "c_hangs", LAUNCH.format(script=str(SCRIPTS / "holds.py")), HANGS)
    write_notebook(
        folder,
        "d_passes",
        f"print(quick, script, site)\n{DRAWS}",
        "import time\ntime.sleep(1.1)",
        "time.sleep(4)",
    )
    return folder


@pytest.fixture(scope="module")
def rehearsed(folder: Path, own_turns: None, tmp_path_factory: pytest.TempPathFactory) -> Rehearsal:
    """All four, executed once; the report is what is on the disk afterwards."""
    place = tmp_path_factory.mktemp("rehearsed") / "runs"
    with runs_root_at(place), pytest.MonkeyPatch.context() as patch:
        patch.setattr(rehearsal, "FOLDER", folder)
        return rehearsal.rehearse(
            rehearsal.matching(),
            quick=True,
            script="s.py",
            cell_minutes=LIMIT_MIN,
            command="course notebooks --site 'a < b'",
        )


@pytest.fixture
def page(rehearsed: Rehearsal) -> str:
    return rehearsed.report.read_text()


def by_name(rehearsed: Rehearsal) -> dict[str, Outcome]:
    return {outcome.notebook: outcome for outcome in rehearsed.outcomes}


@pytest.mark.slow
@pytest.mark.parametrize("cells", [["time.sleep(60)"], ["time.sleep(0.5)"] * 8])
def test_a_notebook_that_takes_too_long_fails_with_a_sentence(
    cells: list[str], tmp_path: Path, runs_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rehearsal, "FOLDER", tmp_path)
    write_notebook(tmp_path, "slow", "import time", *cells)
    found: list[Outcome] = []
    rehearsal.rehearse(rehearsal.matching(), minutes=0.05, on_outcome=found.append)
    assert [outcome.status for outcome in found] == ["failed"] and found[0].seconds < 30
    assert found[0].error == "the notebook took longer than 0.05 minutes (--minutes)"


def test_an_unknown_kernel_comes_with_a_remedy(
    tmp_path: Path, runs_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rehearsal, "FOLDER", tmp_path)
    path = write_notebook(tmp_path, "other", "1")
    path.write_text(path.read_text().replace("python3", "no such kernel"))
    outcomes: list[Outcome] = []
    rehearsal.rehearse(rehearsal.matching(), on_outcome=outcomes.append)
    assert "Jupyter has no kernel 'no such kernel'" in outcomes[0].error
    assert "-m ipykernel install --user --name 'no such kernel'" in outcomes[0].error


def test_a_package_that_is_missing_is_named_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsal_page, "PACKAGES", ("torch", "no-such-package"))
    versions = rehearsal_page.facts(sites.get("local"), "")["versions"]
    assert "no-such-package not installed" in versions


@pytest.mark.slow
class TestRehearsal:
    def test_pictures_are_drawn_for_the_one_theme_of_its_pages(self, rehearsed: Rehearsal) -> None:
        text = (rehearsed.report.parent / "d_passes.ipynb").read_text()
        assert "course-light" in text and "course-dark" not in text

    def test_each_has_its_result_and_none_stops_the_others(self, rehearsed: Rehearsal) -> None:
        states = {name: outcome.status for name, outcome in by_name(rehearsed).items()}
        assert states == {
            "a_passes": "ok",
            "b_raises": "failed",
            "c_hangs": "failed",
            "d_passes": "ok",
        }
        assert not rehearsed.passed and rehearsed.ended_at
        assert all(outcome.seconds > 0 for outcome in rehearsed.outcomes)

    def test_a_failure_names_its_cell_and_error(self, rehearsed: Rehearsal) -> None:
        failed = by_name(rehearsed)["b_raises"]
        assert failed.error.startswith("ValueError: <b>seven</b>")
        assert (failed.cell.cell_id, failed.cell.line) == ("cell-0", "if 1 < 2:")
        assert re.search(rf"In.\[{failed.cell.number}\]:", failed.page.read_text())

    def test_a_cell_past_its_limit_is_ended(self, rehearsed: Rehearsal, folder: Path) -> None:
        hung = by_name(rehearsed)["c_hangs"]
        assert f"longer than {LIMIT_MIN:g} minutes" in hung.error
        assert hung.cell.line == "import time" and (folder / "cleaned_up").exists()
        assert LIMIT_MIN * 60 <= hung.cell.seconds < hung.seconds < 120

    def test_what_it_left_behind_is_cancelled(self, rehearsed: Rehearsal) -> None:
        (left,) = by_name(rehearsed)["c_hangs"].runs
        assert left.status == "cancelled"
        assert f"Cancelled, since it left them behind: {left.run} (" in (
            by_name(rehearsed)["c_hangs"].error
        )

    def test_the_slowest_cells_come_first(self, rehearsed: Rehearsal) -> None:
        slow = by_name(rehearsed)["d_passes"].slowest
        assert [cell.line for cell in slow][:2] == ["time.sleep(4)", "import time"]
        assert slow[0].seconds >= 4 and slow[1].seconds >= 1.1

    def test_parameters_arrive(self, rehearsed: Rehearsal) -> None:
        assert "True s.py local" in by_name(rehearsed)["d_passes"].page.read_text()

    def test_a_run_is_told_from_its_record(self, rehearsed: Rehearsal, page: str) -> None:
        (used,) = by_name(rehearsed)["a_passes"].runs
        assert (used.status, used.fresh, used.images_per_s) == ("ok", True, 1234.5)
        assert used.nodes and used.waited_s >= 0 and used.took_s >= 0
        assert used.job_id.isdecimal() and used.folder.is_dir()
        assert used.run in page and ">1,234<" in page

    def test_the_page_has_a_row_for_each(self, rehearsed: Rehearsal, page: str) -> None:
        for outcome in rehearsed.outcomes:
            assert re.search(
                rf'href="#{outcome.notebook}".*?</a></td>\s*<td>.*{outcome.status}', page
            )
        assert "<h1>Rehearsal on local: 2 ok, 2 failed</h1>" in page
        assert "Unfinished" not in page

    def test_the_page_is_escaped_and_without_a_terminals_colours(self, page: str) -> None:
        assert "<b>seven" not in page and html.escape("<b>seven</b> & red") in page
        assert "a &lt;GPU&gt; &amp; more" in page and "<GPU>" not in page
        assert "if 1 &lt; 2:" in page and "&#39;a &lt; b&#39;" in page

    def test_its_links_lead_somewhere_and_none_to_the_network(
        self, rehearsed: Rehearsal, page: str
    ) -> None:
        assert "//" not in re.sub(r"<(p|dd|pre|code)[ >].*?</\1>", "", page, flags=re.S)
        for target in set(re.findall(r'href="([^"]+)"', page)):
            path, _, anchor = unquote(target).partition("#")
            assert not path.startswith("/"), "the folder can be copied elsewhere"
            there = rehearsed.folder / path if path else rehearsed.report
            assert there.exists(), target
            assert not anchor or f'id="{anchor}"' in there.read_text(), target

    def test_it_says_what_was_done_where(self, page: str) -> None:
        for wanted in (
            "executor local",
            "torch ",
            "papermill ",
            "Python ",
            "cores",
            runs.git_sha()[:12],
        ):
            assert wanted in page


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Makes a notebook in a folder of its own, which becomes the folder of notebooks."""
    home = tmp_path / "books"
    home.mkdir()
    monkeypatch.setattr(rehearsal, "FOLDER", home)
    return lambda *cells, **options: write_notebook(
        home, options.pop("name", "book"), *cells, **options
    )


@pytest.mark.slow
def test_a_run_from_before_is_told_from_a_new_one(
    runs_root: Path, alone: Callable[..., Path], folder: Path
) -> None:
    book = alone(LAUNCH.format(script=str(folder / "measures.py")), "wait(run)")
    launch("ok_light.py")  # of somebody else: no notebook speaks of it
    first = rehearsal.rehearse([book])
    assert first.passed, first.outcomes
    (used,) = first.outcomes[0].runs
    asked = used.folder / "launch.json"
    asked.write_text(asked.read_text().replace('"launched_at": "2', '"launched_at": "1'))
    (again,) = rehearsal.rehearse([book]).outcomes[0].runs
    assert (used.fresh, again.fresh, again.run) == (True, False, used.run)
    assert "1 from before" in first.report.read_text()


@pytest.mark.slow
def test_a_dead_kernel_and_a_strange_notebook_are_failures(
    runs_root: Path, alone: Callable[..., Path]
) -> None:
    dies = alone("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", name="dies")
    lacks = alone("1", name="lacks", parameters="other = 1")
    cut = dies.with_name("cut.ipynb")
    cut.write_text('{"cells": [')
    page = rehearsal.output_folder("local") / "blocks.html"
    blocks = alone(f"import os\nos.mkdir({str(page)!r})", name="blocks")
    done = by_name(rehearsal.rehearse([dies, lacks, cut, blocks]))
    assert [outcome.status for outcome in done.values()] == ["failed"] * 4
    assert "cannot be shown: [Errno 21] Is a directory" in done.pop("blocks").error
    assert "DeadKernelError" in done["dies"].error and done["dies"].cell.cell_id == "cell-0"
    assert "no parameter ['quick', 'script', 'site']" in done["lacks"].error
    assert done["cut"].error and not done["cut"].cell
    assert "cannot be shown" not in "".join(outcome.error for outcome in done.values())


SHOWS = """import os, signal, sys, threading
import matplotlib.pyplot, torch
print(sys.argv, sys.path, os.getcwd(), __name__, matplotlib.get_backend(), torch.get_num_threads())
print(sorted(dict(e.split("=", 1) for e in open("/proc/self/environ").read().split(chr(0)) if e)))
print(os.getsid(0) == os.getpid(), [signal.getsignal(each) for each in (2, 15)], os.umask(18))
print(open("/proc/self/cmdline").read().split(chr(0))[:3], sorted(dir()))
print(len(threading.enumerate()))
matplotlib.pyplot.plot([1, 2])"""


LISTENS = """from ipykernel.kernelapp import IPKernelApp
app = IPKernelApp.instance()
print(app.transport, bool(app.curve_secretkey))"""


# Papermill asks for this last, and ends the kernel as soon as it has the answer.
LINGERS = """import time
kernel = get_ipython().kernel
answer = kernel.shell_handlers["kernel_info_request"]
async def answer_and_linger(*message):
    await answer(*message)
    time.sleep(1)
kernel.shell_handlers["kernel_info_request"] = answer_and_linger"""


def serves_kernels() -> bool:
    """Is there a server for kernels alone?"""
    try:
        with client.connected(f"{client.name()}{client.OF_KERNELS}"):
            return True
    except OSError:
        return False


@pytest.mark.slow
def test_a_forked_kernel_is_as_a_new_one(
    runs_root: Path,
    alone: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture,
) -> None:
    parent = "import psutil\nprint(' '.join(psutil.Process().parent().cmdline()))"
    imported = "import sys\nprint('matplotlib' if 'matplotlib' in sys.modules else 'nothing')"
    book, found = alone(imported, SHOWS, parent, LISTENS, LINGERS), {}
    monkeypatch.setenv("LAB", "1.1")
    for how in ("cold", "warm", "warm, from what has imported more"):
        only(how.partition(",")[0], monkeypatch)
        if how == "warm, from what has imported more":
            eventually(serves_kernels, "a server for kernels")
        more = how != "cold" and serves_kernels()  # one of an earlier test, at the first
        done = rehearsal.rehearse([book])
        assert done.passed, done.outcomes
        _, _, before, shows, asks, listens, _ = nbformat.read(done.outcomes[0].executed, 4).cells
        told = [each.get("text") or sorted(each["data"]) for each in shows.outputs]
        own = r"tmp\w+\.json|'JPY_\w+', |'COURSE_WARM', "
        found[how] = re.sub(own, "", "\n".join(map(str, told)))
        assert ("course.jobs.warm.server" in asks.outputs[0].text) == (how != "cold")
        assert ("matplotlib" in before.outputs[0].text) == more
        assert listens.outputs[0].text == "tcp True\n"  # which others on this machine may listen to
        printed = "".join(capfd.readouterr())
        assert "without encryption" not in printed and "KeyboardInterrupt" not in printed
    assert {*found.values()} == {found["cold"]}
    assert "image/png" in found["warm"] and "'LAB'" in found["warm"]


@pytest.mark.slow
def test_a_kernel_ends_with_who_asked_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only("warm", monkeypatch)
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", str(tmp_path / "connection.json")]
    for end in (lambda kernel: kernel._connection.close(), lambda kernel: kernel.terminate()):
        kernel = kernels.start(command, tmp_path, dict(os.environ))
        assert kernel.poll() is None
        end(kernel)
        assert kernel.wait(timeout=60) == kernel.poll() == 1
        kernel.kill()  # nothing happens, to nobody
    # The server for kernels, where it has ended, comes back with the next one.
    eventually(serves_kernels, "a server for kernels")
    with client.place() as folder:
        lock = Path(f"{folder}/{client.name()}{client.OF_KERNELS}.lock")
        os.kill(int(lock.read_text()), signal.SIGKILL)
    eventually(lambda: not serves_kernels(), "it is gone")
    kernels.start(command, tmp_path, dict(os.environ)).kill()
    eventually(serves_kernels, "another one")
    odd = os.environ | {"OMP_NUM_THREADS": "4,2"}  # libraries have read it otherwise
    assert kernels.start(command, tmp_path, odd) is None


def start_command(tmp_path: Path, folder: Path, *options: str) -> subprocess.Popen:
    """`course notebooks` on another folder of notebooks, as typed in a terminal of its own."""
    script = tmp_path / "command.py"
    script.write_text(COMMAND)
    return start_python(
        str(script),
        folder,
        "notebooks",
        "[cd]*",
        "--quick",
        *options,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def begin_to_hang(runs_root: Path) -> Path:
    """Wait until the hanging notebook's run computes and its last cell sleeps."""
    executed = runs_root / "notebooks" / "local" / "c_hangs.ipynb"
    eventually(lambda: any(run.started for run in runs.all_runs()), "its run computes")
    eventually(
        lambda: executed.exists() and len(rehearsal_page.begun_cells(executed)) == 4,
        "its last cell sleeps",
    )
    return executed.with_name("report.html")


@pytest.mark.slow
def test_ctrl_c_leaves_the_report_and_nothing_else(
    runs_root: Path, folder: Path, tmp_path: Path
) -> None:
    command = start_command(tmp_path, folder, "--json")
    report = begin_to_hang(runs_root)
    os.killpg(command.pid, signal.SIGINT)
    out, err = command.communicate(timeout=60)
    assert command.returncode == 130, err
    ours = f"{runs.PROJECT}/course/"
    assert ours not in err and "Aborted" not in err, err  # no traceback
    told = json.loads(out)
    assert [each["status"] for each in told["outcomes"]] == ["interrupted", "not run"]
    assert told["ended_at"] == "" and told["report"] == str(report)
    page = report.read_text()
    assert "Unfinished" in page and "It was interrupted" in page and "1 not run" in page
    assert [run.status for run in runs.all_runs()] == ["cancelled"]
    expect_no_process(runs_root, timeout_s=20)


@pytest.mark.slow
def test_killed_it_leaves_the_report_so_far(runs_root: Path, folder: Path, tmp_path: Path) -> None:
    command = start_command(tmp_path, folder)
    report = begin_to_hang(runs_root)
    command.kill()
    command.communicate(timeout=60)
    page = report.read_text()
    assert "Unfinished" in page and "1 running, 1 not run" in page


@pytest.mark.slow
@pytest.mark.parametrize("pattern, code", [("b*", 1), ("d*", 0)])
def test_the_command_ends_with_a_code_and_the_reports_place(
    runs_root: Path, folder: Path, tmp_path: Path, pattern: str, code: int
) -> None:
    script = tmp_path / "command.py"
    script.write_text(COMMAND)
    words = [sys.executable, str(script), str(folder), "notebooks", pattern]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == code
    report = runs_root / "notebooks" / "local" / "report.html"
    assert f"report: {report}" in done.stdout and report.exists()
    assert ("ValueError" in done.stderr) == bool(code)


@pytest.mark.parametrize("site", ["local", "a/b", "..", "../x", "", "ä b", ".hidden"])
def test_each_site_has_a_folder_inside(runs_root: Path, site: str) -> None:
    folder = rehearsal.output_folder(site)
    assert folder.resolve().parent == runs_root / "notebooks"
    assert folder.resolve() != rehearsal.output_folder("slurm")


@pytest.mark.parametrize(
    "options, said",
    [
        ({"cell_minutes": 0}, "must be above 0"),
        ({"cell_minutes": float("nan")}, "must be above 0"),
        ({"cell_minutes": float("inf")}, "must be"),
        ({"minutes": -1}, "expected 0, which is no limit, or more"),
        ({"site": "moon"}, "choose local"),
    ],
)
def test_wrong_options_are_refused_at_once(runs_root: Path, options: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        rehearsal.rehearse([Path("none.ipynb")], **options)
    assert not runs_root.exists()


def test_a_folder_that_cannot_be_written_is_a_message(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("COURSE_RUNS", str(tmp_path / "file"))
    with pytest.raises(ValueError, match="cannot be written.*COURSE_RUNS"):
        rehearsal.rehearse([Path("none.ipynb")])


@pytest.mark.parametrize(
    "seconds, said",
    [
        (None, "–"),
        (0.44, "0.4 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.7, "60 s"),
        (200.0, "3 min 20 s"),
        (3900.0, "1 h 5 min"),
    ],
)
def test_seconds_for_people(seconds: float | None, said: str) -> None:
    assert rehearsal_page.took(seconds) == said


GUIDE = (runs.PROJECT / "docs" / "instructors.md").read_text()


def test_the_guide_explains_every_setting_of_a_site() -> None:
    told = {
        name
        for row in re.findall(r"^\|([^|]*)\|", GUIDE, re.M)
        for name in re.findall(r"`(\w+)`", row)
    }
    assert told >= {field.name for field in fields(sites.Site)} - {"name"}


def test_the_guides_example_is_a_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    examples = re.findall(r"```toml\n(.*?)```", GUIDE, re.S)
    (tmp_path / "sites.toml").write_text("\n".join(examples))
    monkeypatch.setenv("COURSE_SITES", str(tmp_path / "sites.toml"))
    assert sites.get("my-cluster").shape(8) == (2, 4) and sites.get("local").shared
