"""The queue: its data on the real Slurm and on this machine, and the live table."""

import json
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import nbformat
import pandas as pd
import pytest
from ipywidgets import HTML
from job_helpers import (
    CONFIG,
    eventually,
    launch,
    launch_running,
    nothing_left,  # noqa: F401 - every test of this file ends its runs
    over,
)
from jupyter_client.manager import start_new_kernel
from nbclient import NotebookClient
from typer.testing import CliRunner

import course
from course.__main__ import app
from course.jobs import queue
from course.widgets import queue as widgets_queue
from course.widgets.queue import LiveQueue

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
    """Return a config that belongs to a new run."""
    return replace(CONFIG, seed=seed, **changes)


def command(*words: str) -> str:
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    return result.output


def table_of(*rows: dict) -> pd.DataFrame:
    """Return a queue as `queue.table` does."""
    types = {"elapsed_s": "Int64", "nodes": "Int64"}
    return pd.DataFrame(rows, columns=list(queue.COLUMNS)).astype(types)


class TestOnThisMachine:
    def test_a_waiting_run_names_the_running_one(self, runs_root: Path) -> None:
        over(launch("ok_light.py"))
        assert queue.table().empty and repr(course.queue()) == queue.EMPTY
        running = launch_running("holds.py")
        waiting = launch("ok_light.py", config=seeded(1))
        (running.folder / "steps.jsonl").write_text('{"step": 0}\n{"step": 1}\n')
        table = queue.table()
        assert list(table["name"]) == [running.name, waiting.name]
        assert list(table["state"]) == ["running", "pending"]
        assert table["reason"][0] == f"on {running.started['host']}"
        assert table["reason"][1] == f"one job at a time: {running.name} computes"
        assert list(table["job"]) == [run.launched["job_id"] for run in (running, waiting)]
        assert list(table["step"]) == [2, 0]
        assert list(table["steps"]) == [CONFIG.epochs * CONFIG.steps] * 2
        assert running.name in repr(course.queue())
        names = [row["name"] for row in json.loads(command("queue", "--json"))]
        assert names == [running.name, waiting.name]
        assert f"one job at a time: {running.name} computes" in command("queue")
        command("cancel", "--all")
        assert running.status == waiting.status == "cancelled"
        assert command("queue").strip() == queue.EMPTY


def test_executed_notebook_has_widget_page_and_text(runs_root: Path, tmp_path: Path) -> None:
    running = launch_running("holds.py")
    source = "import course\ncourse.queue()"
    count = "import threading\n[t.name for t in threading.enumerate()].count('queue')"
    cells = [nbformat.v4.new_code_cell(text) for text in (source, source, count)]
    book = nbformat.v4.new_notebook(cells=cells)
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(book, timeout=60, resources=resources).execute()
    data = book.cells[1].outputs[0].data
    view = "application/vnd.jupyter.widget-view+json"
    assert set(data) == {view, "text/html", "text/plain"}
    assert data[view]["model_id"] in str(book.metadata.widgets)
    for kind in ("text/html", "text/plain"):
        assert running.name in data[kind]
    assert book.cells[2].outputs[0].data["text/plain"] == "1"  # only the second cell's is live


BUTTON = """
import course
from course.widgets import queue as widgets_queue
shown = course.queue()._repr_mimebundle_()
print(widgets_queue._current.cancel.model_id)
"""
BUSY = """
import time
from pathlib import Path
until = time.monotonic() + 30
while not Path("go").exists() and time.monotonic() < until:
    time.sleep(0.05)
"""


@pytest.mark.slow
def test_a_click_cancels_while_a_cell_computes(runs_root: Path, tmp_path: Path) -> None:
    run = launch_running("holds.py")
    kernel, client = start_new_kernel(cwd=str(tmp_path))
    try:
        messages: list[dict] = []
        client.execute_interactive(BUTTON, timeout=60, output_hook=messages.append)
        (button,) = (m["content"]["text"].strip() for m in messages if m["msg_type"] == "stream")
        # Like JupyterLab: messages of widgets go to a second loop of the kernel.
        client.control_channel.send(client.session.msg("create_subshell_request"))
        subshell = client.get_control_msg(timeout=20)["content"]["subshell_id"]
        client.execute(BUSY)
        data = {"method": "custom", "content": {"event": "click"}}
        click = client.session.msg("comm_msg", {"comm_id": button, "data": data})
        click["header"]["subshell_id"] = subshell
        client.shell_channel.send(click)
        eventually(lambda: run.status == "cancelled", "it was cancelled meanwhile", 20)
    finally:
        (tmp_path / "go").touch()
        client.stop_channels()
        kernel.shutdown_kernel(now=True)


def text_of(live: LiveQueue) -> str:
    """Return all text in the widget."""
    return "\n".join(part.value for part in live.box.children if isinstance(part, HTML))


class FakeRead:
    """A queue that a test sets."""

    def __init__(self, *rows: dict) -> None:
        self.rows, self.error, self.calls = list(rows), None, 0

    def __call__(self) -> pd.DataFrame:
        self.calls += 1
        if self.error:
            raise self.error
        return table_of(*self.rows)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make live tables refresh more often, and stop them after the test."""
    monkeypatch.setattr(widgets_queue, "PAUSE_S", 0.05)
    yield
    if widgets_queue._current:
        widgets_queue._current.stop()


def follower_count() -> int:
    return [thread.name for thread in threading.enumerate()].count("queue")


@pytest.mark.usefixtures("runs_root")
class TestTable:
    def test_shows_every_run(self) -> None:
        live = LiveQueue(FakeRead(FIRST, SECOND))
        assert live.refresh()
        for cell in ("amp-1", "amp-2", "Priority: others are before it", "1:02:05", "9 of 20"):
            assert cell in text_of(live)
        assert "1 pending, 1 running." in text_of(live)
        assert live.run.options == ("amp-1", "amp-2")

    def test_escapes_names_reasons_and_errors(self) -> None:
        bad = "<script>x</script>"
        read = FakeRead({**FIRST, "reason": bad, "job": bad})
        live = LiveQueue(read)
        live.refresh()
        read.error = OSError(bad)
        live.refresh()
        assert "<script>" not in text_of(live)
        assert text_of(live).count("&lt;script&gt;") == 3


class TestThread:
    def test_a_second_table_ends_the_first(self, quick: None) -> None:
        first, second = FakeRead(FIRST), FakeRead(SECOND)
        before = widgets_queue.show(first)
        before.was_read.wait(10)
        after = widgets_queue.show(second)
        eventually(lambda: follower_count() == 1, "one thread is left", 10)
        calls = first.calls
        eventually(lambda: second.calls > 5, "the second is live", 10)
        assert first.calls == calls
        text = text_of(before)
        assert re.search(r"As of [\d:]+\.", text) and "A different cell shows the queue" in text
        assert FIRST["name"] in text and "amp-2" in text_of(after)
        after.box.close()
        eventually(lambda: follower_count() == 0, "closing ends the thread", 10)


class TestButtons:
    def test_cancel_ends_the_selected_run(
        self, runs_root: Path, quick: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        was_looked_at, cancel = threading.Event(), widgets_queue.launch.cancel
        monkeypatch.setattr(
            widgets_queue.launch, "cancel", lambda runs: was_looked_at.wait(20) and cancel(runs)
        )
        running = launch_running("holds.py")
        waiting = launch("ok_light.py", config=seeded(1))
        live = widgets_queue.show(queue.table)
        assert live.was_read.wait(20)
        live.run.value = waiting.name
        live.cancel.click()
        assert live.cancel.disabled and live.cancel.description == "Cancelling"
        was_looked_at.set()
        eventually(lambda: f"{waiting.name} was cancelled." in text_of(live), "it says so", 20)
        assert waiting.status == "cancelled" and running.status == "running"
        # One thread draws the text, then these.
        eventually(lambda: live.run.options == (running.name,), "only one is left", 20)
        eventually(lambda: not live.cancel.disabled, "it can be cancelled", 20)
