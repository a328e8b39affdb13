"""Feeding: what trials show, the rule, what decoding costs; and loaders that fail, for real."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import torch
from job_helpers import (
    eventually,
    nothing_left,  # noqa: F401 - ends the runs of a test
    over,
    prepared,
    run_forked,
    run_ranks,
    train_together,
)
from torch.utils.data import DataLoader, Dataset

from course.checks import exercises
from course.config import GIB, Config, rung
from course.data.images import open_image, train_view
from course.jobs import launch
from course.runs import failures, recordings
from course.runs import run as runs
from course.runs.run import Run
from course.training import memory
from course.training.meter import Meter
from course.training.recorder import Recorder
from labs.day2_1_dataloader import feeding
from labs.day2_1_dataloader import figures as pictures

SOLVED = exercises.render(
    text := (exercises.SOLUTIONS / "train.py").read_text(), exercises.count(text)
)
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
    configs = {
        "none": tiny("channels_last", tiny_set),
        "one": tiny("dataloader", tiny_set, workers=1),
        "all": tiny(
            "dataloader",
            tiny_set,
            persistent_workers=True,
            prefetch_factor=3,
            pin_memory=True,
            non_blocking=True,
            drop_last=False,
            uint8=True,
        ),
    }
    found = {name: prepared(root / name, SOLVED, config) for name, config in configs.items()}
    train_together(found.values(), CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1")
    return found


class TestTrials:
    def test_one_row_a_run_with_its_settings_least_waiting_first(self, trained) -> None:
        table = feeding.trials(trained.values())
        assert len(table) == 3 and table["load_ms"].is_monotonic_increasing
        assert set(table["status"]) == {"ok"}
        row = table[table["prefetch"] == 3].iloc[0]
        settings = ("workers", "persistent", "pinned", "non_blocking", "drop_last", "uint8")
        assert [row[name] for name in settings] == [2, True, True, True, False, True]

    def test_times_are_those_of_the_steps(self, trained) -> None:
        run, steps = trained["one"], trained["one"].steps
        row = feeding.trials([run]).iloc[0]
        measured = steps[steps["step"] >= 1]
        assert row["load_ms"] == pytest.approx(1e3 * measured["load_s"].sum() / 5)
        assert row["images_per_s"] == pytest.approx(4 * 5 / measured["step_s"].sum())
        assert row["first_batch_ms"] == pytest.approx(1e3 * steps.loc[0, "load_s"])
        later = steps.loc[steps["epoch"] == 1, "load_s"].iloc[0]
        assert row["next_epoch_ms"] == pytest.approx(1e3 * later)

    def test_workers_take_host_memory(self, trained) -> None:
        table = feeding.trials(trained.values()).set_index("workers")["host_gib"]
        assert 0.1 < table[0] < min(table[1], table[2]) and max(table) < 8

    def test_one_epoch_and_a_run_that_failed(self, tmp_path: Path, tiny_set: Path) -> None:
        run = prepared(tmp_path / "none", SOLVED, tiny("dataloader", tiny_set))
        (run.folder / "record.json").write_text('{"status": "failed", "error": "why"}')
        row = feeding.trials([run]).iloc[0]
        assert (row["status"], row["error"]) == ("failed", "why") and math.isnan(row["load_ms"])
        with pytest.raises(ValueError, match="measured no steps"):
            feeding.appetite(run)

    def test_batches_that_come_together_are_not_hidden(self, tmp_path: Path) -> None:
        """Three of four steps find their batch there; a median would say that none ever waited."""
        run = prepared(tmp_path / "bursts", SOLVED, rung("dataloader", steps=16, epochs=1))
        waits = [0.4, 0.0, 0.0, 0.0] * 4
        rows = [
            {"step": i, "epoch": 0, "load_s": wait, "step_s": 0.1 + wait}
            for i, wait in enumerate(waits)
        ]
        (run.folder / "steps.jsonl").write_text("\n".join(map(json.dumps, rows)))
        row = feeding.trials([run]).iloc[0]
        assert row["load_ms"] == pytest.approx(100)
        assert row["images_per_s"] == pytest.approx(64 / 0.2)
        assert math.isnan(row["next_epoch_ms"])
        assert feeding.appetite(run) == pytest.approx(64 / 0.1)


class TestRule:
    @pytest.mark.parametrize(
        "model, core, cores",
        [
            (4000, 200, 20),
            (4001, 200, 21),
            (858, 200, 5),
            (30, 200, 1),
            (0.6, 0.2, 3),
        ],
    )
    def test_cores(self, model: float, core: float, cores: int) -> None:
        assert feeding.cores_needed(model, core) == cores

    @pytest.mark.parametrize("model, core", [(0, 200), (100, 0), (100, -1), (math.nan, 1)])
    def test_speeds_must_be_above_zero(self, model: float, core: float) -> None:
        with pytest.raises(ValueError, match="above zero"):
            feeding.cores_needed(model, core)

    def test_recorded_gpu(self) -> None:
        eaten = feeding.appetites("nvidia-h100").set_index(["rung", "precision"])["images_per_s"]
        assert eaten.index.is_unique and eaten.is_monotonic_increasing
        assert round(eaten["device", "fp32"]) == 858 and round(eaten["compile", "bf16"]) == 5684
        runs = {
            (run.config.rung, run.config.data, run.config.workers): run
            for run in recordings.recorded_runs("nvidia-h100")
        }
        core = feeding.loaded_by_one(runs["channels_last", "default", 0])
        assert 150 < core < 300
        assert 14 <= feeding.cores_needed(eaten["channels_last", "bf16"], core) <= 27

    def test_loading_and_computing_make_up_the_step(self, trained) -> None:
        run = trained["none"]
        row = feeding.trials([run]).iloc[0]
        together = 1 / (1 / feeding.loaded_by_one(run) + 1 / feeding.appetite(run))
        assert together == pytest.approx(row["images_per_s"])

    def test_workers_hide_what_a_core_does(self, trained) -> None:
        with pytest.raises(ValueError, match="workers=0"):
            feeding.loaded_by_one(trained["one"])


class TestDecoding:
    def test_stages_are_those_of_the_loader(self, tiny_set: Path) -> None:
        path = next((tiny_set / "train").glob("*/*.jpg"))
        for uint8 in (False, True):
            view = train_view(rung("baseline", image_px=40, uint8=uint8))
            torch.manual_seed(3)
            made, seconds = feeding._make(path, list(view.transforms))
            torch.manual_seed(3)
            assert torch.equal(made, view(open_image(str(path)))) and len(seconds) == 5

    def test_profile_of_the_default_set(self) -> None:
        before = torch.get_num_threads()
        table = feeding.decode_profile(6, 64).set_index("stage")
        assert tuple(table.index) == feeding.STAGES and (table["ms"] > 0).all()
        assert table["share"].sum() == pytest.approx(1)
        assert torch.get_num_threads() == before

    def test_bytes_are_a_quarter(self) -> None:
        table = feeding.bytes_or_floats(4, 64)
        assert table.loc["float32", "megabytes"] == 4 * 3 * 64 * 64 * 4 / 1e6
        assert table.loc["float32", "megabytes"] == 4 * table.loc["uint8", "megabytes"]
        assert table.loc["float32", "normalise_ms"] == 0 < table.loc["uint8", "normalise_ms"]


def test_pictures_are_drawn(trained) -> None:
    table = feeding.trials(trained.values())
    eaten = feeding.appetites("nvidia-h100")
    drawn = [
        pictures.plot_trials(table),
        pictures.plot_waiting([(name, run.steps) for name, run in trained.items()], 1),
        pictures.plot_decoding({"float32": feeding.decode_profile(2, 64)}),
        pictures.plot_rule(eaten, 196, 16, table),
    ]
    for picture, words in zip(
        drawn, ("waiting for the batch: ", "dashed", "decode JPEG: ", "supply")
    ):
        assert words in picture.alt and picture._repr_png_()


class Full(Dataset):
    """Images of zeros, 12 MB each."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.zeros(3, 1000, 1000), 0


@pytest.mark.skipif(
    sys.platform != "linux", reason="what waits in /dev/shm is known on Linux alone"
)
def test_host_memory_counts_what_is_on_its_way_once() -> None:
    waiting = 2 * 6 * 4 * 12e6  # bytes, made ahead and mapped by nobody
    before = shutil.disk_usage("/dev/shm")
    if before.free < 2 * waiting:
        pytest.skip("/dev/shm is too small here")
    alone = memory.host_gib()
    batches = iter(DataLoader(Full(), 4, num_workers=2, prefetch_factor=6))
    next(batches)  # dropped at once, and one more is made
    eventually(lambda: shutil.disk_usage("/dev/shm").used - before.used > 0.95 * waiting, "all lie")
    more, all_of_it = memory.host_gib() - alone, waiting / GIB
    assert 0.9 * all_of_it < more < 1.1 * all_of_it + 0.4  # two processes more, no batch twice


def test_the_look_at_memory_is_no_part_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "host_gib", lambda: time.sleep(0.4) or 3.0)
    meter = Meter(Recorder(None), torch.device("cpu"))
    for _ in meter.steps([(torch.zeros(1), torch.zeros(1))] * 3, 0):
        for phase in ("load", "forward", "loss", "backward"):
            meter.lap(phase)
        meter.lap("optimizer", loss=torch.tensor(1.0))
    assert meter.run._values["host_gib"] == 3.0
    assert max(map(sum, meter._seconds)) < 0.3


# A loader that fails as `trouble` says, timed and recorded as in the training script.
LOADS = """
import os, time
import torch
from torch.utils.data import DataLoader, Dataset, default_collate
from course.runs import failures
from course.training.meter import Meter
from course.training.recorder import recording

kept = []

class Images(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        {item}
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


def fails(folder: Path, *, item="pass", collate="pass", first="pass", **config) -> Run:
    """The run of a loader with some trouble, over."""
    script = LOADS.format(item=item, collate=collate, first=first)
    config = rung("dataloader", quick=True, **{"precision": "fp32", "workers": 2} | config)
    began = time.monotonic()
    run = train(prepared(folder / "run", script, config))
    assert time.monotonic() - began < ENDS_WITHIN_S
    return run


def small_shm(size: str) -> str:
    """What a process executes to have so small a /dev/shm; nothing outside changes."""
    mount = f"mount --make-rprivate / && mount -t tmpfs -o size={size} tmpfs /dev/shm"
    tried = subprocess.run(
        ["unshare", "--mount", "sh", "-c", mount], capture_output=True, text=True
    )
    if tried.returncode:
        pytest.skip(f"no /dev/shm of our own can be mounted here: {tried.stderr.strip()}")
    unshare = "ctypes.CDLL(None).unshare(0x20000)"  # CLONE_NEWNS; in os from Python 3.12 on
    return f"import ctypes; assert {unshare} == os.system({mount!r}) == 0"


@contextmanager
def small_memory(limit: str):
    """What a process executes to be in a group that may take so much memory; above it the kernel
    ends one of them."""
    group = Path("/sys/fs/cgroup/memory") / f"course-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(limit)
    except OSError as error:
        pytest.skip(f"no group with a memory limit can be made here: {error}")
    try:
        yield f"open('{group}/cgroup.procs', 'w').write(str(os.getpid()))"
    finally:
        eventually(lambda: not (group / "cgroup.procs").read_text(), "the group is empty", 20)
        group.rmdir()


@pytest.mark.slow
class TestTrouble:
    def test_truncated_jpeg_in_a_worker(self, tmp_path: Path, tiny_set: Path) -> None:
        root = tmp_path / "set"
        subprocess.run(["cp", "-r", str(tiny_set), str(root)], check=True)
        (bad := next((root / "train").glob("*/*.jpg"))).write_bytes(b"\xff\xd8 cut")
        run = train(prepared(tmp_path / "run", SOLVED, tiny("dataloader", root, batch_size=8)))
        assert run.status == "failed"
        error = run.record.error
        assert error.startswith(f"DataError: {bad} cannot be decoded") and "take it out" in error
        assert "in DataLoader worker" in error and "Traceback" not in error and "\n" not in error

    def test_worker_killed_in_a_launched_run(self, runs_root: Path, tiny_set: Path) -> None:
        config = tiny("dataloader", tiny_set, epochs=500, persistent_workers=True)
        (runs_root / "script").mkdir(parents=True)
        script = runs_root / "script" / "train.py"
        script.write_text(SOLVED)
        run = launch.launch(script, config, time_min=2)
        eventually(lambda: launch.steps_done(run) > 2, "it trains")
        mine = [
            each
            for each in psutil.process_iter(["cmdline"])
            if str(run.script) in (each.info["cmdline"] or [])
        ]
        worker = max(mine, key=lambda each: each.create_time())
        worker.send_signal(signal.SIGKILL)
        assert over(run).status == "failed"
        error = run.record.error
        assert f"{worker.pid}" in error and "DataLoader worker" in error, error
        assert "ended from outside" in error and "fewer workers" in error, error
        assert "train.py, line" not in error  # the line was not to blame

    def test_workers_that_take_more_memory_than_there_is(self, tmp_path: Path) -> None:
        chosen = "open('/proc/self/oom_score_adj', 'w').write('1000')"  # a worker, not its parent
        with small_memory("400M") as within:
            item = f"{chosen}; kept.append(torch.ones(8_000_000))"
            run = fails(tmp_path, first=within, item=item, steps=8)
        assert run.status == "failed"
        assert "The system ran out of memory" in run.record.error, run.record.error
        assert "fewer workers" in run.record.error

    def test_workers_above_the_limit_of_the_run(self, tmp_path: Path) -> None:
        # At once, so that there is memory left for saying so: 4 GB.
        item = "kept.append(torch.ones(1_000_000_000))"
        run = fails(tmp_path, item=item, memory_gib=2)
        assert run.status == "oom", run.record.error
        assert "each needs its own memory" in run.record.error, run.record.error

    def test_full_shared_memory(self, tmp_path: Path) -> None:
        run = fails(tmp_path, first=small_shm("4m"))
        assert run.status == "failed"
        error = run.record.error
        assert "/dev/shm (0.0039 GiB) is full" in error and "--shm-size" in error, error
        assert "Traceback" not in error and "\n" not in error

    def test_a_batch_that_cannot_be_handed_over_does_not_hang(self, tmp_path: Path) -> None:
        """The labels find no room: PyTorch drops the batch, and would wait for it for ever."""
        fill = "os.system('head -c 100m /dev/zero > /dev/shm/filler 2>/dev/null')"
        first = f"{small_shm('64m')}; failures.PATIENCE_S = 15"
        # One worker: of two the other could find it full as it makes its images, which is told.
        run = fails(tmp_path, collate=fill, first=first, workers=1)
        assert run.status == "failed"
        assert "timed out after 15 seconds" in run.record.error, run.record.error
        assert "could not hand its batch over" in run.record.error


WAITS = """
import sys, time
from datetime import timedelta
import torch
from torch import distributed
from course.runs.failures import summarize

place, leaves, rank = sys.argv[1], sys.argv[2] == "leaves", int(sys.argv[3])
distributed.init_process_group("gloo", f"file://{place}", rank=rank, world_size=2,
                               timeout=timedelta(seconds=30 if leaves else 3))
distributed.all_reduce(torch.ones(4))
if rank == 1:
    time.sleep(0.5 if leaves else 6)
    sys.stdout.flush()
    __import__("os")._exit(0)
try:
    distributed.all_reduce(torch.ones(4))
except Exception as error:
    print(summarize(error))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "how, told", [("leaves", "Another rank ended"), ("sleeps", "This rank waited")]
)
def test_rank_that_the_others_wait_for(how: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text(WAITS)
    first, _ = run_ranks(tmp_path / "waits.py", str(tmp_path / "meet"), how, folder=tmp_path)
    assert told in first.stdout, first


# As PyTorch 2.11 to 2.15 and Python say it.
@pytest.mark.parametrize(
    "text, told",
    [
        (
            "DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that "
            "dataloader's workers are out of shared memory.",
            "/dev/shm",
        ),
        ("unable to write to file </torch_1_2_0>: No space left on device (28)", "/dev/shm"),
        ("OSError: [Errno 28] No space left on device: 'steps.jsonl'", "A disk is full"),
        ("RuntimeError: received 0 items of ancdata", "ulimit -n"),
        ("OSError: [Errno 24] Too many open files", "ulimit -n"),
        ("OSError: [Errno 12] Cannot allocate memory", "its own memory"),
        ("[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(Seq", "This rank waited"),
        ("wait timeout after 60000ms, keys: /default_pg/0//cpu//0/0", "This rank waited"),
        ("Timed out after 61 seconds waiting for clients. 1/2 clients joined.", "This rank waited"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", ""),
        ("ValueError: lr must be positive", ""),
    ],
)
def test_advice_for_what_cannot_be_made_here(text: str, told: str) -> None:
    found = failures.advice(text)
    assert told in found and bool(told) == bool(found)


def test_a_script_that_sets_its_own_timeout_keeps_it() -> None:
    own, none = DataLoader(Full(), num_workers=1, timeout=7), DataLoader(Full())
    for batches in (own, none, [1, 2]):
        failures.set_worker_timeout(batches)
    assert (own.timeout, none.timeout) == (7, 0)
