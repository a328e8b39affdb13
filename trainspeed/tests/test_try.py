"""Changes are made to unmodified scripts, and judged by their losses."""

from __future__ import annotations

import getpass
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainspeed import run, trial
from trainspeed.changes import FILES, shift_seed
from trainspeed.recorder import Plan
from trainspeed.trial import Change, Losses, judge, suggest, try_changes
from trainspeed.turns import ENDED

LIMIT_S = 240.0
SETTINGS = """
import torch
from torch.utils.data import DataLoader, TensorDataset

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.head = torch.nn.Conv2d(3, 4, 3), torch.nn.Linear(4, 2)

    def forward(self, x):
        features = self.conv(x)
        seen.append((str(x.is_contiguous(memory_format=torch.channels_last)), str(features.dtype)))
        return {"scores": self.head(features.mean((2, 3)))}

seen = []
model = Net()
optimizer = torch.optim.AdamW(
    [{"params": model.conv.parameters(), "lr": 1e-3}, {"params": model.head.parameters()}], lr=1e-2
)
loader = DataLoader(TensorDataset(torch.randn(16, 3, 8, 8)), 4, shuffle=True)
for (images,) in loader:
    scores = model(images)["scores"]
    scores.square().mean().backward()
    optimizer.step()
print(
    loader.num_workers,
    optimizer.param_groups[0]["fused"],
    *seen[0],
    scores.dtype,
    model.conv.weight.is_contiguous(memory_format=torch.channels_last),
    type(model).__name__,
    [group["lr"] for group in optimizer.param_groups],
    torch.get_float32_matmul_precision(),
)
"""


def run_script(folder: Path, code: str, trial: dict | None) -> subprocess.CompletedProcess:
    """Run a script with the probe."""
    (folder / "script.py").write_text(code)
    (folder / "plan").mkdir(exist_ok=True)
    plan = {} if trial is None else {"trial": trial}
    env = run.environment(Plan(str(folder / "plan"), **plan))
    command = [sys.executable, "script.py"]
    return subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=LIMIT_S
    )


@pytest.mark.slow
def test_changes_are_made_before_the_optimizer_exists(tmp_path: Path) -> None:
    plain = run_script(tmp_path, SETTINGS, {"changes": {}})
    usual = "0 None False torch.float32 torch.float32 False Net [0.001, 0.01] highest"
    assert plain.stdout.strip() == usual, plain.stderr
    modules = {"modules": ["Net"]}
    lines = SETTINGS.splitlines()
    number = next(at for at, line in enumerate(lines) if line.startswith("loader ="))
    line = f"script.py:{number + 1}: {lines[number]}"
    changes = {
        "workers": {"line": line, "num_workers": 1},
        "fused": {},
        "bf16": modules,
        "channels_last": modules,
        "tf32": {},
    }
    changed = run_script(tmp_path, SETTINGS, {"changes": changes})
    wanted = "1 True True torch.bfloat16 torch.float32 True Net [0.001, 0.01] high"
    assert changed.stdout.strip() == wanted, changed.stderr


@pytest.mark.slow
def test_a_trial_lists_files_and_ends_where_it_would_save(tmp_path: Path) -> None:
    code = (
        "import torch, io\n"
        "torch.save({}, io.BytesIO())\n"
        "open('log.txt', 'w').close()\n"
        "open('log.txt').close()\n"
        "torch.save({}, 'last.pt')\n"
        "print('not reached')\n"
    )
    done = run_script(tmp_path, code, {"changes": {}})
    assert done.returncode == -15
    assert not (tmp_path / "last.pt").exists()
    assert "script.py:5: torch.save" in (tmp_path / "plan" / ENDED).read_text()
    rows = (tmp_path / "plan" / FILES).read_text().splitlines()
    (row,) = map(json.loads, rows)
    assert row["path"] == str(tmp_path / "log.txt")
    assert row["line"].startswith("script.py:3")


@pytest.mark.parametrize("seed", [5, 2**32 - 1, [1, 2, 2**32 - 1], None])
def test_numpy_takes_a_shifted_seed(seed: Any) -> None:
    shifted = shift_seed(seed, 1)
    assert shifted != seed or seed is None
    np.random.RandomState(shifted)


@pytest.mark.slow
def test_seeds_are_the_scripts_plus_the_trials(tmp_path: Path) -> None:
    code = "import torch\n{}print(torch.rand(1).item())\n"
    outputs = {
        (script, seed): run_script(tmp_path, code.format(script), {"changes": {}, "seed": seed})
        for script in ("", "torch.manual_seed(5)\n")
        for seed in (0, 1)
    }
    values = {key: done.stdout for key, done in outputs.items()}
    assert len({*values.values()}) == 4


TRAINING = """
import time, torch
from torch.utils.data import DataLoader, Dataset

class Items(Dataset):
    def __len__(self):
        return 400

    def __getitem__(self, index):
        time.sleep(0.004)
        return torch.full((4,), index / 400)

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(Items(), batch_size=4, shuffle=True)
WRITE
while True:
    for batch in loader:
        time.sleep(0.016)
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
"""


def try_script(folder: Path, code: str, *options: str) -> subprocess.CompletedProcess:
    """Run `trainspeed try` on a script."""
    (folder / "script.py").write_text(code)
    command = [sys.executable, "-m", "trainspeed", "try", "--seconds", "2", *options]
    return subprocess.run(
        [*command, "--", "python", "script.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        stdin=subprocess.DEVNULL,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


@pytest.mark.long  # it runs a script five times
def test_workers_are_tried_on_a_script_that_waits_for_its_loader(tmp_path: Path) -> None:
    done = try_script(tmp_path, TRAINING.replace("WRITE", ""), "--json")
    assert done.returncode == 0, done.stderr
    rows = {row["name"]: row for row in json.loads(done.stdout)}
    workers = rows["workers"]
    assert workers["failure"] == ""
    assert (workers["is_same"], workers["training"]) == (
        True,
        "the same batches, the same losses",
    )
    assert ": loader = DataLoader(Items()" in workers["line"]
    assert "num_workers=" in workers["code"]
    assert workers["comparison"]["turns"] >= 3


@pytest.mark.long  # it compiles a network, without precompiled headers
def test_compiling_runs_nothing_that_others_put_into_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The current directory, and the folder in /tmp that is named after the user."""
    script, shared, scratch = (tmp_path / name for name in ("script.py", "tmp", "scratch"))
    script.write_text(TRAINING.replace("WRITE", "").replace("0.016", "0.001"))
    prepared = shared / f"torchinductor_{getpass.getuser()}"
    for folder in (prepared, scratch):
        folder.mkdir(parents=True)
    (scratch / "ctypes.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w').close()")
    monkeypatch.chdir(scratch)
    monkeypatch.setenv("TMPDIR", str(shared))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(prepared))
    monkeypatch.setattr(tempfile, "tempdir", str(shared))
    change = Change("compile", {"modules": ["Linear"]}, "", "")
    monkeypatch.setattr(trial, "_profile", lambda command: ([change], []))
    (result,) = try_changes([sys.executable, str(script)], seconds=2)
    assert (result.failure, result.is_same) == ("", True)
    assert not (tmp_path / "imported").exists()
    assert [*shared.iterdir()] == [prepared] and [*prepared.iterdir()] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "code, message",
    [
        ("raise SystemExit(7)", "ended with code 7 before it trained"),
        (TRAINING.replace("WRITE", "1 / 0"), ""),
    ],
)
def test_a_script_that_fails_at_once_is_not_tried(tmp_path: Path, code: str, message: str) -> None:
    done = try_script(tmp_path, code)
    assert done.returncode == (7 if message else 1)
    assert message in done.stderr


@pytest.mark.slow
def test_a_script_that_writes_files_is_not_repeated_without_consent(tmp_path: Path) -> None:
    done = try_script(tmp_path, TRAINING.replace("WRITE", "open('log.txt', 'w')"))
    assert done.returncode == 2
    assert "log.txt" in done.stderr
    assert "--yes" in done.stderr


# Without processes.

BASE = [1.0 - 0.01 * step for step in range(20)]
SEED = Losses([loss + 0.1 * (-1) ** step for step, loss in enumerate(BASE)])


@pytest.mark.parametrize(
    "losses, batches, is_same, words",
    [
        (BASE, [1.0, 2.0], True, "same batches, the same losses"),
        ([loss * 1.0001 for loss in BASE], [1.0, 2.0], True, "as by rounding"),
        ([loss + 0.01 for loss in BASE], [1.0, 2.0], True, "another seed"),
        ([loss + 0.12 for loss in BASE], [1.0, 2.0], False, "another seed"),
        ([loss + 0.12 for loss in BASE], [3.0, 4.0], True, "other random batches"),
        ([loss + 1 for loss in BASE], [3.0, 4.0], False, "other random batches"),
        ([*BASE[:9], float("nan"), *BASE[10:]], [1.0], False, "not finite from loss 9"),
        (BASE[:5], [1.0], None, "not judged: 5 losses"),
    ],
)
def test_losses_show_whether_it_is_the_same_training(
    losses: list[float], batches: list[float], is_same: bool | None, words: str
) -> None:
    original = Losses(BASE, [1.0, 2.0])
    found, why = judge(
        Losses(losses, batches), original, copy=original, other_seed=SEED, rounding=1e-3
    )
    assert found is is_same
    assert words in why


def profile_values(*limits: str, device: str = "cpu", **changes) -> dict:
    """Return values as a profile has them."""
    values = {
        "limits": [{"name": name, "change": ""} for name in limits],
        "machine": {
            "device": device,
            "cores": 4,
            "float32_matmul_precision": "highest",
            "cudnn_benchmark": False,
            "deterministic": False,
        },
        "forwards": [
            {
                "module": "Net",
                "line": "a.py:9",
                "parameters": 9,
                "inputs": ["float32 (8, 3, 32, 32)"],
                "autocast": "",
                "is_training": True,
            }
        ],
        "optimizers": [
            {"kind": "AdamW", "line": "a.py:5", "parameters": 9, "implementation": "default"}
        ],
        "loaders": [
            {
                "line": "a.py:7",
                "length": 100,
                "workers": 0,
                "pin_memory": False,
                "persistent_workers": False,
                "wait_s": 1.0,
            }
        ],
        "is_compiled": False,
        "ranks": 1,
    }
    return values | changes


def test_only_changes_that_fit_the_profile_are_tried() -> None:
    def names(values: dict) -> list[str]:
        return [change.name for change in suggest(values)]

    assert names(profile_values()) == []
    assert names(profile_values("data")) == ["workers"]
    assert names(profile_values("format")) == ["bf16", "channels_last"]
    assert names(profile_values("optimizer", "launch")) == ["fused", "compile"]
    assert names(profile_values("launch", is_compiled=True)) == []
    (workers,) = suggest(profile_values("data"))
    assert workers.arguments == {"num_workers": 3, "persistent_workers": True, "line": "a.py:7"}
    (workers,) = suggest(profile_values("data", ranks=2))
    assert workers.arguments["num_workers"] == 1
    assert names(profile_values(device="cuda")) == ["cudnn_benchmark"]
    on_gpu = names(profile_values("format", device="cuda"))
    assert on_gpu == ["cudnn_benchmark", "tf32", "bf16", "channels_last"]


def test_an_iterable_dataset_gets_no_workers() -> None:
    values = profile_values("data")
    values["loaders"][0]["length"] = None
    assert suggest(values) == []


def test_plans_are_values_that_json_has() -> None:
    plan = Plan("folder", trial={"changes": {"fused": {}}, "seed": 1})
    assert Plan(**json.loads(json.dumps(asdict(plan)))) == plan
