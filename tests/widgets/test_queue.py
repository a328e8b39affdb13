"""The queue: its data on the real Slurm and on this machine, and the live table's behaviour."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import nbformat
import pandas as pd
import pytest
from ipywidgets import HTML, Button, ToggleButton, Widget
from job_helpers import (
    CONFIG,
    SITES,
    eventually,
    launch,
    launch_running,
    nothing_left,  # noqa: F401 - every test of this file ends its runs
    over,
    prepared,
    release,
)
from jupyter_client.manager import start_new_kernel
from nbclient import NotebookClient
from typer.testing import CliRunner

import course
from course.cli.options import app
from course.jobs import launch as jobs
from course.jobs import local, own_slurm, queue, slurm
from course.runs import run as runs
from course.widgets import queue as widgets_queue
from course.widgets.queue import LiveQueue
from tools.slurm_box import control

FIRST = {
    "job": "7",
    "name": "amp-1",
    "site": "slurm",
    "state": "pending",
    "reason": "Priority: others are before it",
    "elapsed_s": 0,
    "nodes": 2,
    "gpus": 8,
    "step": 0,
    "steps": 20,
}
SECOND = {**FIRST, "job": "8", "name": "amp-2", "state": "running", "elapsed_s": 3725, "step": 9}


def seeded(seed: int, **changes: object):
    """A config of its own, hence a run of its own."""
    return replace(CONFIG, seed=seed, **changes)


def command(*words: str, anew: bool = False) -> str:
    """What the `course` command prints; in a process of its own, which takes a second, or here."""
    if anew:
        line = [sys.executable, "-m", "course", *words]
        return subprocess.run(line, capture_output=True, text=True, check=True, timeout=60).stdout
    told = CliRunner().invoke(app, words)
    assert told.exit_code == 0, told.output
    return told.output


def rows() -> dict[str, dict]:
    """The queue by run name."""
    return {row["name"]: row for row in queue.table().to_dict("records")}


def pretended(*found: dict) -> pd.DataFrame:
    """A queue as `queue.table` gives it."""
    return pd.DataFrame(found, columns=list(queue.COLUMNS)).astype(
        {"elapsed_s": "Int64", "nodes": "Int64"}
    )


@pytest.mark.slow
@pytest.mark.usefixtures("slurm")
class TestOnSlurm:
    def test_running_and_waiting_with_their_reasons(
        self, runs_root: Path, user_sites: Path
    ) -> None:
        user_sites.write_text(SITES)
        running = launch_running("holds.py", site="whole", gpus=2)
        waiting = launch("ok_light.py", site="slurm", gpus=4, config=seeded(1))
        last = launch("ok_light.py", site="slurm", gpus=2, config=seeded(2))
        eventually(lambda: "Resources" in rows()[waiting.name]["reason"], "Slurm looked at it", 30)
        eventually(lambda: "Priority" in rows()[last.name]["reason"], "and at the other", 60)
        table = queue.table()
        assert list(table.columns) == list(queue.COLUMNS)
        assert list(table["name"]) == [running.name, waiting.name, last.name]
        assert list(table["job"]) == [run.launched["job_id"] for run in (running, waiting, last)]
        assert list(table["state"]) == ["running", "pending", "pending"]
        assert list(table["nodes"]) == [2, 1, 1]
        assert list(table["gpus"]) == [2, 4, 2]
        assert table["reason"][0] == "on node[1-2]"
        assert table["reason"][1] == "Resources: it waits for nodes or GPUs to become free"
        assert table["elapsed_s"][0] > 0 and list(table["elapsed_s"][1:]) == [0, 0]

    def test_one_squeue_answers_for_all_and_for_a_while(
        self, runs_root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        launched = [launch("holds.py", site="slurm", config=seeded(n)) for n in range(3)]
        asked, ask = [], slurm.ask
        monkeypatch.setattr(slurm, "ask", lambda *words: (asked.append(words[0]), ask(*words))[1])
        slurm._forget()
        together = [threading.Thread(target=queue.table) for _ in range(6)]
        for each in together:
            each.start()
        for each in together:
            each.join(30)
        assert set(rows()) == {run.name for run in launched}
        assert asked == ["squeue"]

    def test_put_back_into_the_queue_it_waits_again(
        self, runs_root: Path, user_sites: Path
    ) -> None:
        user_sites.write_text(SITES)
        run = launch_running("holds.py", site="whole", gpus=2)
        (run.folder / "steps.jsonl").write_text('{"step": 1}\n')
        assert rows()[run.name]["step"] == 1
        started = (run.folder / "started.json").read_text()
        urgent = launch_running("holds.py", site="urgent", gpus=2, config=seeded(1))
        (run.folder / "started.json").write_text(started)  # left so by a node that fails
        assert run.status == "running"
        eventually(lambda: rows()[run.name]["state"] == "pending", "Slurm says otherwise", 20)
        row = rows()[run.name]
        assert row["reason"].startswith("BeginTime: ")
        assert (row["step"], row["elapsed_s"]) == (0, 0)
        assert rows()[urgent.name]["state"] == "running"

    def test_cancelled_behind_the_courses_back_it_is_recorded(self, runs_root: Path) -> None:
        run = launch_running("holds.py", site="slurm")
        env = os.environ | own_slurm.environment()
        subprocess.run(["scancel", run.launched["job_id"]], env=env, check=True, timeout=30)
        eventually(lambda: queue.table().empty, "it is gone", 60)
        assert run.status == "cancelled"

    def test_one_that_is_being_submitted_is_not_lost(self, runs_root: Path) -> None:
        run = launch("holds.py", site="slurm")
        text = (run.folder / "launch.json").read_text()
        asked = {key: value for key, value in run.launched.items() if key != "job_id"}
        (run.folder / "launch.json").write_text(json.dumps(asked))
        assert rows()[run.name]["reason"] == "it is being submitted"
        (run.folder / "launch.json").write_text(text)
        assert run.record is None

    def test_without_the_controller_it_says_so_and_comes_back(
        self, runs_root: Path, slurm: Path
    ) -> None:
        run = launch_running("holds.py", site="slurm")
        live = LiveQueue(queue.table)
        live.refresh()
        control._pids(slurm)["slurmctld"].send_signal(signal.SIGTERM)
        eventually(lambda: "slurmctld" not in control._pids(slurm), "it is gone")
        live.refresh()  # what squeue said last is fresh enough for a while
        time.sleep(2)
        assert live.refresh() > 0
        assert "Slurm does not answer just now; it will be asked again." in text_of(live)
        assert live.table.set_index("name").loc[run.name, "state"] == "running"
        assert pd.isna(live.table["nodes"][0])
        control.up()
        eventually(lambda: live.refresh() and "does not answer" not in text_of(live), "back", 30)
        release(run)
        assert over(run).status == "ok", jobs.explain(run)
        eventually(lambda: live.refresh() == 0, "the queue is empty", 20)
        assert f"{run.name} is over: ok." in text_of(live)


class TestOnThisMachine:
    def test_the_waiting_one_names_the_one_that_computes(self, runs_root: Path) -> None:
        over(launch("ok_light.py"))
        assert queue.table().empty and repr(course.queue()) == queue.EMPTY
        running = launch_running("holds.py")
        waiting = launch("ok_light.py", config=seeded(1))
        (running.folder / "steps.jsonl").write_text("{}\n{}\n")
        table = queue.table()
        assert list(table["name"]) == [running.name, waiting.name]
        assert list(table["state"]) == ["running", "pending"]
        assert table["reason"][0] == f"on {running.started['host']}"
        assert table["reason"][1] == f"one job at a time: {running.name} computes"
        assert list(table["job"]) == [run.launched["job_id"] for run in (running, waiting)]
        assert list(table["step"]) == [2, 0]
        assert list(table["steps"]) == [CONFIG.epochs * CONFIG.steps] * 2
        assert running.name in repr(course.queue())
        for run in (waiting, running):
            jobs.cancel(run)
        assert queue.table().empty

    def test_the_command_prints_it_and_cancels_all_of_it(self, runs_root: Path) -> None:
        running = launch_running("holds.py")
        waiting = launch("ok_light.py", config=seeded(1))
        names = [row["name"] for row in json.loads(command("queue", "--json", anew=True))]
        assert names == [running.name, waiting.name]
        assert f"one job at a time: {running.name} computes" in command("queue")
        command("cancel", "--all")
        assert running.status == waiting.status == "cancelled"
        assert command("queue").strip() == queue.EMPTY

    def test_a_run_whose_processes_are_gone_is_recorded_as_lost(self, runs_root: Path) -> None:
        run = launch_running("holds.py")
        for pid, _ in (run.launched["controller"], run.started["supervisor"]):
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: queue.table().empty, "it is gone", 20)
        assert run.status == "lost"


def test_is_what_the_package_offers() -> None:
    assert course.queue is widgets_queue.queue


@pytest.mark.parametrize(
    "used, seconds",
    [
        ("0:07", 7),
        ("12:34", 754),
        ("1:02:03", 3723),
        ("2-01:00:00", 176400),
        ("INVALID", 0),
    ],
)
def test_times_of_squeue(used: str, seconds: int) -> None:
    assert slurm._elapsed(used) == seconds


@pytest.mark.parametrize(
    "word, said",
    [
        ("PartitionTimeLimit", "PartitionTimeLimit: it asks for more time"),
        ("PartitionDown", "PartitionDown: the partition takes no jobs"),
        ("QOSMaxJobsPerUserLimit", "QOSMaxJobsPerUserLimit: you have as many jobs"),
        ("AssocGrpGRES", "AssocGrpGRES: a limit of your account"),
        ("ReqNodeNotAvail, UnavailableNodes:node1", "UnavailableNodes:node1: nodes that it needs"),
        ("MoonPhase", "MoonPhase"),
    ],
)
def test_reasons_in_words(word: str, said: str) -> None:
    assert said in slurm._in_words(word)
    assert slurm._in_words(word).startswith(word)


class TestPlain:
    def test_text_and_page_say_the_same(self) -> None:
        table = pretended(FIRST, {**SECOND, "nodes": None, "elapsed_s": None})
        for said in (queue.as_lines(table), queue.as_page(table)):
            for cell in ("amp-1", "Priority: others are before it", "0:00", "9 of 20", "?"):
                assert cell in said
        assert "1:02:05" in queue.as_lines(pretended(SECOND))

    def test_page_is_escaped(self) -> None:
        page = queue.as_page(pretended({**FIRST, "name": "<script>", "reason": "<b>"}))
        assert "<script>" not in page and "<b>" not in page and "&lt;script&gt;" in page

    def test_not_read_in_time(self) -> None:
        assert queue.as_lines(None) == queue.SLOW and queue.SLOW in queue.as_page(None)

    def test_no_widget_without_a_kernel(self) -> None:
        assert set(course.queue()._repr_mimebundle_()) == {"text/plain"}

    def test_executed_notebook_holds_table_page_and_text(
        self, runs_root: Path, tmp_path: Path
    ) -> None:
        running = launch_running("holds.py")
        source = "import course\ncourse.queue()"
        again = "import threading\n[each.name for each in threading.enumerate()].count('queue')"
        cells = [nbformat.v4.new_code_cell(text) for text in (source, source, again)]
        book = nbformat.v4.new_notebook(cells=cells)
        place = {"metadata": {"path": str(tmp_path)}}
        NotebookClient(book, timeout=60, resources=place).execute()
        data = book.cells[1].outputs[0].data
        view = "application/vnd.jupyter.widget-view+json"
        assert set(data) == {view, "text/html", "text/plain"}
        assert data[view]["model_id"] in str(book.metadata.widgets)
        for kind in ("text/html", "text/plain"):
            assert running.name in data[kind]
        # Only the second cell's table is live.
        assert book.cells[2].outputs[0].data["text/plain"] == "1"


BUTTON = """
import course
from course.widgets import queue as widgets_queue
shown = course.queue()._repr_mimebundle_()
row, = widgets_queue._current._rows.values()
print(row.cancel.model_id)
"""
BUSY = """
import time
from pathlib import Path
until = time.monotonic() + 30
while not Path("go").exists() and time.monotonic() < until:
    time.sleep(0.05)
"""


@pytest.mark.slow
def test_a_click_is_heard_while_a_cell_computes(runs_root: Path, tmp_path: Path) -> None:
    run = launch_running("holds.py")
    kernel, client = start_new_kernel(cwd=str(tmp_path))
    try:
        said: list[dict] = []
        client.execute_interactive(BUTTON, timeout=60, output_hook=said.append)
        (button,) = (
            each["content"]["text"].strip() for each in said if each["msg_type"] == "stream"
        )
        # As JupyterLab does: what concerns widgets goes to a loop beside that of the cells.
        client.control_channel.send(client.session.msg("create_subshell_request"))
        beside = client.get_control_msg(timeout=20)["content"]["subshell_id"]
        client.execute(BUSY)
        data = {"method": "custom", "content": {"event": "click"}}
        click = client.session.msg("comm_msg", {"comm_id": button, "data": data})
        click["header"]["subshell_id"] = beside
        client.shell_channel.send(click)
        eventually(lambda: run.status == "cancelled", "it was cancelled meanwhile", 20)
    finally:
        (tmp_path / "go").touch()
        client.stop_channels()
        kernel.shutdown_kernel(now=True)


def text_of(live: LiveQueue) -> str:
    """All that a reader finds in the table."""
    return "\n".join(each.value for each in parts(live, HTML))


def parts(live: LiveQueue, kind: type) -> list[Widget]:
    """Every widget of a kind in the table, from top to bottom."""
    found, left = [], [live.box]
    while left:
        each = left.pop(0)
        found += [each] if type(each) is kind else []
        left = [*getattr(each, "children", ()), *left]
    return found


class Pretence:
    """A queue that says what a test sets."""

    def __init__(self, *found: dict) -> None:
        self.found, self.error, self.times = list(found), None, 0

    def __call__(self) -> pd.DataFrame:
        self.times += 1
        if self.error:
            raise self.error
        return pretended(*self.found)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A live table that looks more often, and is ended after the test."""
    monkeypatch.setattr(widgets_queue, "FIRST_S", 0.05)
    monkeypatch.setattr(widgets_queue, "SLOWEST_S", 0.1)
    yield
    if widgets_queue._current:
        widgets_queue._current.stop()


def following() -> int:
    """How many threads follow a queue."""
    return [each.name for each in threading.enumerate()].count("queue")


@pytest.mark.usefixtures("runs_root")
class TestTable:
    def test_shows_every_run_with_two_buttons(self) -> None:
        live = LiveQueue(Pretence(FIRST, SECOND))
        assert live.refresh() > 0
        for cell in ("amp-1", "amp-2", "Priority: others are before it", "1:02:05", "9 of 20"):
            assert cell in text_of(live)
        assert "1 pending, 1 running." in text_of(live)
        assert [each.tooltip for each in parts(live, Button)] == ["Cancel amp-1", "Cancel amp-2"]
        assert [each.tooltip for each in parts(live, ToggleButton)] == [
            "Show the log of amp-1",
            "Show the log of amp-2",
        ]

    def test_escapes_names_reasons_and_errors(self) -> None:
        bad = "<script>x</script>"
        pretence = Pretence({**FIRST, "name": f"a{bad[1:8]}", "reason": bad, "job": bad})
        live = LiveQueue(pretence)
        live.refresh()
        pretence.error = OSError(bad)
        live.refresh()
        assert "<script>" not in text_of(live)
        assert text_of(live).count("&lt;script&gt;") == 3

    def test_looks_less_and_less_while_nothing_changes(self) -> None:
        pretence = Pretence(FIRST)
        live = LiveQueue(pretence)
        pauses = [live.refresh() for _ in range(12)]
        assert pauses[0] == widgets_queue.FIRST_S and pauses == sorted(pauses)
        assert pauses[-1] == widgets_queue.SLOWEST_S
        pretence.found = [{**FIRST, "elapsed_s": 60}]
        assert live.refresh() == widgets_queue.SLOWEST_S
        pretence.found = [{**FIRST, "state": "running"}]
        assert live.refresh() == widgets_queue.FIRST_S

    def test_an_error_is_a_sentence_and_the_table_stays(self) -> None:
        pretence = Pretence(FIRST)
        live = LiveQueue(pretence)
        live.refresh()
        pretence.error = OSError("no space left on device")
        assert live.refresh() > 0
        assert "could not be read just now: no space left on device" in text_of(live)
        assert "amp-1" in text_of(live)
        pretence.error = None
        live.refresh()
        assert "could not be read" not in text_of(live)

    def test_an_error_at_the_first_look_is_told_too(self) -> None:
        pretence = Pretence()
        pretence.error = RuntimeError("why")
        live = LiveQueue(pretence)
        assert live.refresh() > 0 and live.read.is_set() and live.table is None
        assert "why" in text_of(live)

    def test_says_when_the_queue_is_empty(self) -> None:
        live = LiveQueue(Pretence())
        assert live.refresh() == 0
        assert queue.EMPTY in text_of(live)

    def test_very_many_runs_are_counted_not_drawn(self) -> None:
        many = [{**FIRST, "name": f"amp-{number}"} for number in range(60)]
        live = LiveQueue(Pretence(*many))
        live.refresh()
        assert len(parts(live, Button)) == widgets_queue.MOST_ROWS
        assert "60 pending. 10 of them are not shown" in text_of(live)


class TestThread:
    def test_ends_when_the_queue_is_empty(self, quick: None) -> None:
        pretence = Pretence(FIRST)
        live = widgets_queue.show(pretence)
        eventually(lambda: pretence.times > 3, "it looks again and again", 10)
        assert following() == 1
        pretence.found = []
        eventually(lambda: following() == 0, "the thread ends", 10)
        assert queue.EMPTY in text_of(live)

    def test_a_second_table_ends_the_first(self, quick: None) -> None:
        first, second = Pretence(FIRST), Pretence(SECOND)
        before = widgets_queue.show(first)
        before.read.wait(10)
        after = widgets_queue.show(second)
        eventually(lambda: following() == 1, "one thread is left", 10)
        looked = first.times
        eventually(lambda: second.times > 5, "the second is live", 10)
        assert first.times == looked
        said = text_of(before)  # what it showed last stays, with nothing to press that would act
        assert re.search(r"As it was at [\d:]+\. Another cell shows the queue now\.", said)
        assert FIRST["name"] in said and {each.disabled for each in parts(before, Button)} == {True}
        assert "amp-2" in text_of(after)

    def test_ends_when_the_widget_is_closed(self, quick: None) -> None:
        live = widgets_queue.show(Pretence(FIRST))
        live.read.wait(10)
        live.box.close()
        eventually(lambda: following() == 0, "the thread ends", 10)

    def test_outlives_errors(self, quick: None) -> None:
        pretence = Pretence(FIRST)
        pretence.error = ValueError("why")
        live = widgets_queue.show(pretence)
        eventually(lambda: pretence.times > 3, "it tries again", 10)
        pretence.error = None
        eventually(lambda: "amp-1" in text_of(live), "it shows the queue", 10)


class TestButtons:
    def test_log_opens_grows_and_closes(self, runs_root: Path) -> None:
        run = launch_running("holds.py")
        live = LiveQueue(queue.table)
        live.refresh()
        (opener,) = parts(live, ToggleButton)
        opener.value = True
        assert opener.description == "Hide log"
        eventually(lambda: live.refresh() and "holding" in text_of(live), "it has printed", 20)
        (path,) = (path for path in run.logs if path.suffix == ".out")
        path.write_text("<script>more</script>\n" * 30)
        live.refresh()
        assert text_of(live).count("&lt;script&gt;more") == 20
        assert "<script>" not in text_of(live)
        opener.value = False
        assert "holding" not in text_of(live) and opener.description == "Log"

    def test_a_log_that_is_not_there_yet(self, runs_root: Path) -> None:
        live = LiveQueue(Pretence(FIRST))
        live.refresh()
        parts(live, ToggleButton)[0].value = True
        assert "No log yet" in text_of(live)

    def test_cancel_is_asked_for_then_told(self, runs_root: Path, quick: None) -> None:
        running = launch_running("holds.py")
        waiting = launch("ok_light.py", config=seeded(1))
        live = widgets_queue.show(queue.table)
        assert live.read.wait(20)
        (button,) = (each for each in parts(live, Button) if waiting.name in each.tooltip)
        button.click()
        assert button.disabled and button.description == "Cancelling"
        eventually(lambda: f"{waiting.name} was cancelled." in text_of(live), "it says so", 20)
        assert waiting.status == "cancelled" and running.status == "running"
        assert [each.tooltip for each in parts(live, Button)] == [f"Cancel {running.name}"]

    def test_cancelling_that_fails_can_be_tried_again(
        self, quick: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fails(run: runs.Run) -> None:
            raise OSError(f"{run.name}: <disk> full")

        monkeypatch.setattr(jobs, "cancel", fails)
        live = widgets_queue.show(Pretence(FIRST))
        assert live.read.wait(10)
        (button,) = parts(live, Button)
        button.click()
        said = "amp-1 could not be cancelled: amp-1: &lt;disk&gt; full"
        eventually(lambda: said in text_of(live), "it says so", 10)
        assert not button.disabled and button.description == "Cancel"

    def test_the_row_says_that_cancelling_was_asked_for(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        held = threading.Event()
        monkeypatch.setattr(jobs, "cancel", lambda run: held.wait(20))
        live = LiveQueue(Pretence(FIRST))
        live.refresh()
        began = time.monotonic()
        parts(live, Button)[0].click()
        assert time.monotonic() - began < 5  # it does not wait for the end of the job
        assert "cancelling was asked for" in text_of(live)
        live.refresh()
        assert "cancelling was asked for" in text_of(live)
        held.set()


@pytest.mark.parametrize(
    "here, device, gpus",
    [(False, "cpu", 0), (False, "auto", 0), (True, "cpu", 0), (True, "auto", 2)],
)
def test_what_computes_on_the_processor_takes_no_gpu(
    runs_root: Path, monkeypatch: pytest.MonkeyPatch, here: bool, device: str, gpus: int
) -> None:
    prepared(runs_root / "one", "", seeded(1, device=device), gpus=2)
    monkeypatch.setattr(local, "is_alive", lambda _: True)
    monkeypatch.setattr(local, "has_gpu", lambda: here)
    assert rows()["one"]["gpus"] == gpus
