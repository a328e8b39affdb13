"""Loading: trials, the rule, what an image costs; and loaders that fail, for real."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from job_helpers import (
    eventually,
    nothing_left,  # noqa: F401 - ends the runs of a test
    over,
    prepared,
    run_forked,
    train_together,
)

from course.checks import exercises
from course.config import Config, rung
from course.jobs import launch
from course.runs import recordings
from course.runs import run as runs
from course.runs.run import Run
from labs.dataloader import figures, loading

SOLVED = exercises.render((exercises.SOLUTIONS / "train.py").read_text())
TINY = {
    "quick": True,
    "precision": "fp32",
    "model": "resnet18",
    "data": "imagenet",
    "image_px": 32,
    "batch_size": 4,
    "epochs": 2,
    "steps": 3,
    "warmup_steps": 1,
    "val_steps": 0,
}
ENDS_WITHIN_S = 240  # or it hangs; a busy machine takes a minute to import torch


def tiny(name: str, root: Path, **changes) -> Config:
    return rung(name, **{**TINY, "data_root": str(root), **changes})


def train(run: Run) -> Run:
    """Execute the run's script; it must end by itself."""
    env = {
        **os.environ,
        runs.FOLDER_VARIABLE: str(run.folder),
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }
    done = run_forked(run.script, folder=run.folder, env=env, timeout_s=ENDS_WITHIN_S)
    assert run.record, done.stderr[-2000:]
    return run


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, tiny_set: Path) -> dict[str, Run]:
    """Three trials of the solution, on 32 files."""
    root = tmp_path_factory.mktemp("trials")
    changed = {
        "persistent_workers": True,
        "prefetch_factor": 3,
        "pin_memory": True,
        "non_blocking": True,
        "drop_last": False,
    }
    configs = {
        "none": tiny("channels_last", tiny_set),
        "one": tiny("dataloader", tiny_set, workers=1),
        "all": tiny("dataloader", tiny_set, **changed),
    }
    runs = {name: prepared(root / name, SOLVED, config) for name, config in configs.items()}
    train_together(runs.values(), CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1")
    return runs


def test_trials_have_their_settings_times_and_memory(trained: dict[str, Run]) -> None:
    table = loading.trials(trained.values())
    assert table["load_ms"].is_monotonic_increasing and set(table["status"]) == {"ok"}
    row = table[table["prefetch"] == 3].iloc[0]
    settings = ("workers", "persistent", "pinned", "non_blocking", "drop_last", "uint8")
    assert [row[name] for name in settings] == [2, True, True, True, False, True]
    row, steps = table[table["workers"] == 1].iloc[0], trained["one"].steps
    measured = steps[steps["step"] >= 1]
    assert row["load_ms"] == pytest.approx(1e3 * measured["load_s"].sum() / 5)
    later = steps.loc[steps["epoch"] == 1, "load_s"].iloc[0]
    assert row["next_epoch_ms"] == pytest.approx(1e3 * later)
    memory_gib = table.set_index("workers")["host_gib"]
    assert 0.1 < memory_gib[0] < min(memory_gib[1], memory_gib[2]) and max(memory_gib) < 8
    row = table[table["workers"] == 0].iloc[0]
    assert loading.core_speed(trained["none"]) == pytest.approx(4e3 / row["load_ms"])
    with pytest.raises(ValueError, match="workers=0"):
        loading.core_speed(trained["one"])


def test_a_failed_run_has_no_times(tmp_path: Path, tiny_set: Path) -> None:
    run = prepared(tmp_path / "none", SOLVED, tiny("dataloader", tiny_set))
    (run.folder / "record.json").write_text('{"status": "failed", "error": "why"}')
    row = loading.trials([run]).iloc[0]
    assert (row["status"], row["error"]) == ("failed", "why") and math.isnan(row["load_ms"])
    run = prepared(tmp_path / "alone", SOLVED, tiny("channels_last", tiny_set))
    with pytest.raises(ValueError, match="measured no steps"):
        loading.core_speed(run)


def test_the_mean_counts_the_steps_that_a_median_hides(tmp_path: Path) -> None:
    """Three of four steps find their batch ready."""
    run = prepared(tmp_path / "bursts", SOLVED, rung("dataloader", steps=16, epochs=1))
    waits = [0.4, 0.0, 0.0, 0.0] * 4
    rows = [
        {"step": i, "epoch": 0, "load_s": wait, "step_s": 0.1 + wait}
        for i, wait in enumerate(waits)
    ]
    (run.folder / "steps.jsonl").write_text("\n".join(map(json.dumps, rows)))
    row = loading.trials([run]).iloc[0]
    assert row["load_ms"] == pytest.approx(100)
    assert row["images_per_s"] == pytest.approx(64 / 0.2)


def test_speeds_of_the_recorded_gpu() -> None:
    speeds = loading.training_speeds("nvidia-h100")
    speeds = speeds.set_index(["rung", "precision"])["images_per_s"]
    assert speeds.index.is_unique and speeds.is_monotonic_increasing
    assert round(speeds["device", "fp32"]) == 858 and round(speeds["compile", "bf16"]) == 5684
    (run,) = (
        run
        for run in recordings.recorded_runs("nvidia-h100")
        if (run.config.rung, run.config.data) == ("channels_last", "default")
    )
    assert 150 < loading.core_speed(run) < 300


def test_figures_show_their_values(trained: dict[str, Run]) -> None:
    table = loading.trials(trained.values())
    waits = [(name, run.steps) for name, run in trained.items()]
    profile = {"one core": loading.decode_profile(2, 64)}
    assert "waiting for the batch: " in figures.plot_trials(table).alt
    assert "dashed" in figures.plot_waiting(waits, 1).alt
    assert "decode JPEG: " in figures.plot_decoding(profile).alt
    (alone,) = (
        run for run in recordings.recorded_runs("nvidia-h200", "loading") if not run.config.workers
    )
    assert "supply" in figures.plot_cores_needed("nvidia-h200", alone, table).alt


# Prints the GiB that more prefetching takes. A process by itself, because workers are forks: pages
# that a large parent changes afterwards become theirs alone, and are counted as well.
PREFETCHING = """
import shutil, time
import torch
from torch.utils.data import DataLoader, Dataset
from trainspeed import measured_memory as memory

BATCH = 48e6  # bytes; the allocator gives such blocks back at once

class Batches(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.zeros(4, 3, 1000, 1000)

def host_gib(prefetch):
    before = shutil.disk_usage("/dev/shm").used
    batches = iter(DataLoader(Batches(), None, num_workers=2, prefetch_factor=prefetch))
    next(batches)  # dropped at once, and one more is loaded
    while shutil.disk_usage("/dev/shm").used - before < 0.95 * 2 * prefetch * BATCH:
        time.sleep(0.05)
    return memory.host_gib()

few = host_gib(1)
print(host_gib(6) - few, 2 * 5 * BATCH / 2**30)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows what is in /dev/shm")
def test_host_memory_counts_prefetched_batches_once() -> None:
    if shutil.disk_usage("/dev/shm").free < 2e9:
        pytest.skip("/dev/shm is too small here")
    printed = subprocess.check_output([sys.executable, "-c", PREFETCHING], text=True, timeout=120)
    more, expected = map(float, printed.split())
    # It would be twice as much if batches counted twice; the last one may be late.
    assert 0.7 * expected < more < 1.3 * expected


# A loader with a fault in one place, timed and recorded as in the training script.
SCRIPT = """
import os, time
import torch
from torch.utils.data import DataLoader, Dataset, default_collate
from course.runs import failures
from course.training.meter import Meter
from course.training.recorder import recording

class Images(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.zeros(3, 256, 256), index % 4

def collate(items):
    batch = default_collate(items)
    {collate}
    return batch

def main(run):
    meter = Meter(run, torch.device("cpu"))
    batches = DataLoader(Images(), 8, num_workers=run.config.workers, collate_fn=collate)
    for images, labels in meter.steps(batches, 0):
        for phase in ("load", "forward", "loss", "backward"):
            meter.lap(phase)
        meter.lap("optimizer", loss=torch.tensor(1.0))

if __name__ == "__main__":
    {first}
    with recording() as run:
        main(run)
"""


def run_faulty(folder: Path, *, collate="pass", first="pass", **config) -> Run:
    """Run a loader with a fault; it must end in time."""
    script = SCRIPT.format(collate=collate, first=first)
    config = rung("dataloader", quick=True, **{"precision": "fp32", "workers": 2} | config)
    return train(prepared(folder / "run", script, config))


def small_shm(size: str) -> str:
    """Return code with which a process mounts its own small /dev/shm; nothing outside changes."""
    mount = f"mount --make-rprivate / && mount -t tmpfs -o size={size} tmpfs /dev/shm"
    trial = subprocess.run(
        ["unshare", "--mount", "sh", "-c", mount], capture_output=True, text=True
    )
    if trial.returncode:
        pytest.skip(f"no private /dev/shm can be mounted here: {trial.stderr.strip()}")
    unshare = "ctypes.CDLL(None).unshare(0x20000)"  # CLONE_NEWNS; in os from Python 3.12 on
    return f"import ctypes; assert {unshare} == os.system({mount!r}) == 0"


@pytest.mark.slow
class TestFailures:
    def test_truncated_jpeg_in_a_worker(self, tmp_path: Path, tiny_set: Path) -> None:
        root = shutil.copytree(tiny_set, tmp_path / "set")
        (bad := next((root / "train").glob("*/*.jpg"))).write_bytes(b"\xff\xd8 cut")
        run = train(prepared(tmp_path / "run", SOLVED, tiny("dataloader", root, batch_size=8)))
        error = run.record.error
        assert error.startswith(f"DataError: {bad} cannot be decoded") and "take it out" in error
        assert "in DataLoader worker" in error and "Traceback" not in error and "\n" not in error

    def test_worker_killed_in_a_launched_run(self, runs_root: Path, tiny_set: Path) -> None:
        # In one epoch: between epochs, PyTorch sometimes waits for a killed worker without a limit.
        config = tiny("dataloader", tiny_set, steps=1500)
        (runs_root / "script").mkdir(parents=True)
        script = runs_root / "script" / "train.py"
        script.write_text(SOLVED)
        run = launch.launch(script, config, time_min=2)
        eventually(lambda: launch.steps_done(run) > 2, "it trains")
        descendants = psutil.Process(run.started["supervisor"][0]).children(recursive=True)
        worker = max(descendants, key=lambda process: process.create_time())
        worker.send_signal(signal.SIGKILL)
        assert over(run).status == "failed"
        error = run.record.error
        # Killed while it sends a batch, PyTorch notices the connection before the worker.
        is_named = f"{worker.pid}" in error and "DataLoader worker" in error
        assert is_named or error.startswith("ConnectionResetError"), error
        assert "ended from outside" in error and "fewer workers" in error, error
        assert "train.py, line" not in error  # the line is not to blame

    def test_full_shared_memory(self, tmp_path: Path) -> None:
        run = run_faulty(tmp_path, first=small_shm("4m"))
        error = run.record.error
        assert "/dev/shm (0.0039 GiB) is full" in error and "--shm-size" in error, error
        assert "Traceback" not in error and "\n" not in error

    def test_a_batch_that_does_not_fit_does_not_hang(self, tmp_path: Path) -> None:
        """The labels find no room: PyTorch drops the batch, and would wait for it forever."""
        fill = "os.system('head -c 100m /dev/zero > /dev/shm/filler 2>/dev/null')"
        first = f"{small_shm('64m')}; failures.PATIENCE_S = 15"
        # With two workers, the other could find it full while it makes images, and report that.
        run = run_faulty(tmp_path, collate=fill, first=first, workers=1)
        assert "timed out after 15 seconds" in run.record.error, run.record.error
        assert "could not hand its batch over" in run.record.error
