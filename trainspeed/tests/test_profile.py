"""`trainspeed profile` on real scripts: what it reports, and what it leaves alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from trainspeed import recorder
from trainspeed.run import INJECT

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
HEAD = """
import sys, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.AdamW(model.parameters())
"""
DATA = """
class Blur:
    def __call__(self, x):
        for _ in range(200):
            x = (x + x.roll(1)) / 2
        return x
class Items(Dataset):
    def __len__(self): return 480
    def __getitem__(self, n): return Blur()(torch.randn(32)), n % 10
"""
LOOP = """
for x, y in DataLoader(Items(), 8, num_workers=WORKERS):
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print("done", *sys.argv[1:])
"""
QUICK = ["--steps", "4", "--warm-up", "2", "--seconds", "0"]


def trainspeed(*arguments: str, cwd: Path, **env: str) -> subprocess.CompletedProcess:
    """Run the command `trainspeed`."""
    command = [sys.executable, "-m", "trainspeed", *arguments]
    path = os.pathsep.join([str(ROOT), env.pop("PYTHONPATH", "")])
    values = os.environ | {"PYTHONPATH": path.rstrip(os.pathsep)} | env
    return subprocess.run(command, cwd=cwd, env=values, capture_output=True, text=True, timeout=300)


def profiled(text: str, folder: Path, *arguments: str, **env: str) -> tuple[dict[str, Any], str]:
    """Profile a script; return the page's values and what the script printed."""
    (folder / "mine.py").write_text(text)
    out = folder / "out"
    command = ["--", sys.executable, "mine.py", *arguments]
    done = trainspeed("profile", *QUICK, "--out", str(out), *command, cwd=folder, **env)
    assert done.returncode == 0, done.stderr
    return json.loads((out / "page.json").read_text()), done.stdout


@pytest.mark.parametrize("workers", [0, 1])
def test_the_slow_stage_of_loading_is_named(tmp_path: Path, workers: int) -> None:
    text = HEAD + DATA + LOOP.replace("WORKERS", str(workers))
    page, out = profiled(text, tmp_path, "--lr", "1")
    assert out == "done --lr 1\n"  # the script's output, and nothing else
    assert page["rule"] == "optimizer steps" and page["has_trace"]
    assert page["samples_per_s"] == pytest.approx(8 / page["step_s"], rel=0.2)
    assert page["loaders"][0]["workers"] == workers
    assert page["loaders"][0]["line"].startswith("mine.py:")
    assert page["optimizers"][0]["kind"] == "AdamW"
    assert page["stages"][0]["stage"] == "Blur"
    assert "x.roll(1)" in page["stages"][0]["line"]
    if not workers:  # with a worker, whether the loop waits depends on the machine
        evidence = {limit["name"]: limit["evidence"] for limit in page["limits"]}["data"]
        assert any("Blur" in line for line in evidence)


@pytest.mark.parametrize("is_folder", [False, True])
def test_what_others_put_where_the_page_goes_is_not_followed(
    tmp_path: Path, is_folder: bool
) -> None:
    out, linked = tmp_path / "out", tmp_path / "mine.txt"
    out.mkdir()
    linked.write_text("linked")
    os.link(linked, out / "page.json")
    os.mkfifo(out / "rank0.json.gz")
    (out / "page.html").mkdir() if is_folder else (out / "page.html").symlink_to(linked)
    (tmp_path / "train.py").write_text(HEAD + DATA + LOOP.replace("WORKERS", "0"))
    command = ["profile", *QUICK, "--out", str(out), "--", sys.executable, "train.py"]
    done = trainspeed(*command, cwd=tmp_path)
    assert linked.read_text() == "linked" and json.loads((out / "page.json").read_text())["parts"]
    assert [path.name for path in out.iterdir() if path.name.startswith(".")] == []
    if is_folder:
        assert done.returncode == 2 and "error: [Errno 21] Is a directory" in done.stderr
    else:
        assert done.returncode == 0 and "<!doctype html>" in (out / "page.html").read_text()
        assert (out / "rank0.json.gz").is_file()


def test_accumulation_and_two_optimizers(tmp_path: Path) -> None:
    text = (
        HEAD
        + """
other = torch.optim.SGD([nn.Parameter(torch.zeros(3, requires_grad=True))], 0.1)
other.param_groups[0]["params"][0].grad = torch.zeros(3)
for step in range(40):
    for _ in range(3):
        model(torch.randn(8, 32)).square().mean().backward()
    optimizer.step()
    other.step()
    optimizer.zero_grad()
"""
    )
    page, _ = profiled(text, tmp_path)
    assert page["backwards_per_iteration"] == 3 and page["updates_per_iteration"] == 2
    assert page["batches_per_iteration"] == 0
    parts = page["parts"]
    total = parts["data"] + parts["compute"] + parts["communication"] + parts["launch"]
    assert total == pytest.approx(page["step_s"], rel=1e-6)


@pytest.mark.parametrize(
    "loop, rule",
    [
        ("model(torch.randn(8, 32)).square().mean().backward()", "backward passes"),
        ("next(batches)", "batches"),
    ],
)
def test_scripts_without_an_optimizer(tmp_path: Path, loop: str, rule: str) -> None:
    head = HEAD.partition("optimizer =")[0]
    text = head + DATA + f"batches = iter(DataLoader(Items(), 8))\nfor _ in range(40): {loop}\n"
    page, _ = profiled(text, tmp_path)
    assert page["rule"] == rule


def test_a_script_with_its_own_profiler_is_timed_without_traces(tmp_path: Path) -> None:
    loop = LOOP.replace("WORKERS", "0").replace("\n", "\n    ").strip()
    text = f"{HEAD}{DATA}\nwith torch.profiler.profile():\n    {loop}\n"
    page, _ = profiled(text, tmp_path)
    assert not page["has_trace"] and page["step_s"] > 0


def test_a_profiler_that_never_records_does_not_prevent_the_trace(tmp_path: Path) -> None:
    never = "schedule=lambda step: torch.profiler.ProfilerAction.NONE"
    loop = LOOP.replace("WORKERS", "0").replace("zero_grad()", "zero_grad(); own.step()")
    page, _ = profiled(
        f"{HEAD}{DATA}\nown = torch.profiler.profile({never})\nown.start()\n{loop}", tmp_path
    )
    assert page["has_trace"] and page["parts"]["launches"] > 0


def test_a_profiler_that_begins_during_the_trace_has_the_way(tmp_path: Path) -> None:
    own = "when = torch.profiler.schedule(wait=7, warmup=1, active=2, repeat=1)\nown = "
    own += "torch.profiler.profile(schedule=when, on_trace_ready=lambda own: print('own'))\n"
    own += "own.start()\n"
    loop = LOOP.replace("WORKERS", "0").replace("zero_grad()", "zero_grad(); own.step()")
    page, out = profiled(HEAD + DATA + own + loop, tmp_path)
    assert out == "own\ndone\n" and not page["has_trace"] and page["step_s"] > 0


def test_the_environments_own_sitecustomize_runs_too(tmp_path: Path) -> None:
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text("import builtins; builtins.mark = 'chained'")
    text = HEAD + DATA + LOOP.replace("WORKERS", "0") + "print(mark)\n"
    page, out = profiled(text, tmp_path, PYTHONPATH=str(folder))
    assert out.splitlines()[-1] == "chained" and page["rule"] == "optimizer steps"


def test_ranks_of_torchrun(tmp_path: Path) -> None:
    text = (
        HEAD
        + """
torch.distributed.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(model)
for _ in range(40):
    model(torch.randn(8, 32)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
torch.distributed.destroy_process_group()
"""
    )
    (tmp_path / "mine.py").write_text(text)
    done = trainspeed("profile", "--json", *QUICK, *TORCHRUN, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    page = json.loads(done.stdout)
    assert page["ranks"] == 2 and page["rule"] == "optimizer steps"
    assert page["parts"]["communication"] + page["parts"]["hidden"] > 0


RANKS = """
import time
distributed = torch.distributed
distributed.init_process_group("gloo")
model, rank = nn.parallel.DistributedDataParallel(model), distributed.get_rank()
while True:
    loss = model(torch.randn(8, 32)).square().mean()
    LATE
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
TORCHRUN = ["--", sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "mine.py"]


def test_torchrun_is_stopped_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(HEAD + RANKS.replace("LATE", ""))
    done = trainspeed("profile", "--stop", *QUICK, *TORCHRUN, cwd=tmp_path)
    assert done.returncode == 0 and "2 ranks" in done.stderr
    for word in ("Traceback", "SIGTERM", "SignalException", "Connection closed"):
        assert word not in done.stderr, done.stderr


def test_ranks_that_wait_for_a_slower_one(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(HEAD + RANKS.replace("LATE", "time.sleep(0.3 * rank)"))
    out = tmp_path / "out"
    done = trainspeed("profile", "--stop", *QUICK, "--out", str(out), *TORCHRUN, cwd=tmp_path)
    page = json.loads((out / "page.json").read_text())
    parts, waiting = page["parts"], page["waiting"]
    assert 0.5 * parts["communication"] < parts["waiting"] <= parts["communication"]
    assert waiting["last"][1] > 0.5 and waiting["of_step"][0] > waiting["of_step"][1]
    first, *_ = [limit for limit in page["limits"] if limit["name"] == "imbalance"]
    assert first["evidence"][0].startswith("rank 1 begins")
    assert first["gain"] == pytest.approx(1 / (1 - sum(waiting["of_step"]) / 2))
    assert "\nwaiting for ranks" in done.stderr and "\nRank 1 begins " in done.stderr


def test_the_failure_of_a_rank_is_not_hidden(tmp_path: Path) -> None:
    late = "if rank: raise KeyError('a mistake')"
    (tmp_path / "mine.py").write_text(HEAD + RANKS.replace("LATE", late))
    done = trainspeed("profile", "--stop", *QUICK, *TORCHRUN, cwd=tmp_path)
    assert done.returncode == 1
    assert "KeyError: 'a mistake'" in done.stderr and "ChildFailedError" in done.stderr


@pytest.mark.parametrize(
    "text, code, words",
    [
        ("print('nothing')", 2, "no iteration was seen"),
        (HEAD + "optimizer.step()", 2, "ended after 0 iterations"),
        ("raise SystemExit(7)", 7, "ended with code 7 before it trained"),
    ],
)
def test_what_cannot_be_profiled(tmp_path: Path, text: str, code: int, words: str) -> None:
    (tmp_path / "mine.py").write_text(text)
    done = trainspeed("profile", "--", sys.executable, "mine.py", cwd=tmp_path)
    assert done.returncode == code and words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "command, words",
    [
        ([], "no command: write it after --"),
        (["--", "no-such-program"], "no-such-program: no such program"),
    ],
)
def test_a_wrong_command(tmp_path: Path, command: list[str], words: str) -> None:
    done = trainspeed("profile", *command, cwd=tmp_path)
    assert done.returncode == 2 and words in done.stderr


def test_ctrl_c_ends_everything(tmp_path: Path) -> None:
    text = HEAD + "print('ready', flush=True)\nimport time\ntime.sleep(600)\n"
    (tmp_path / "mine.py").write_text(text)
    process = subprocess.Popen(
        [sys.executable, "-m", "trainspeed", "profile", "--", sys.executable, "mine.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert process.stdout.readline() == "ready\n"
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(60) == 130
    with pytest.raises(ProcessLookupError):  # nothing of its group is left
        for _ in range(100):
            os.killpg(process.pid, 0)
            time.sleep(0.1)


def test_the_probe_is_in_a_folder_of_its_own() -> None:
    assert [path.name for path in INJECT.glob("*.py")] == ["sitecustomize.py"]


@pytest.mark.parametrize(
    ("cuda", "chosen", "expected"),
    [("13.0", None, "1"), ("12.6", None, "1"), ("12.4", None, None), (None, None, None),
     ("13.0", "0", "0")],
)  # fmt: skip
def test_the_tracing_library_is_unloaded_where_this_is_safe(
    cuda: str | None, chosen: str | None, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder.torch.version, "cuda", cuda)
    monkeypatch.delenv("TEARDOWN_CUPTI", raising=False)
    if chosen is not None:
        monkeypatch.setenv("TEARDOWN_CUPTI", chosen)
    monkeypatch.setattr(recorder.os, "environ", dict(os.environ))  # what it sets, ends with it
    recorder._unload_tracing_afterwards()
    assert os.environ.get("TEARDOWN_CUPTI") == expected
