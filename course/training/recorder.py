"""Record a training run: what the training process writes into the run's folder."""

from __future__ import annotations

import json
import math
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from course.config import GIB, RUNGS, Config, rung
from course.runs import failures
from course.runs.evidence import Evidence, to_values
from course.runs.files import complete_file, write_atomically
from course.runs.record import write_record
from course.runs.restarts import (
    CHECKPOINT,
    CHECKPOINTS,
    EPOCHS,
    GO_ON,
    METADATA,
    remove_unfinished,
)
from course.runs.run import (
    ENDED,
    FOLDER_VARIABLE,
    OPEN,
    Run,
    rank_file,
    record_of,
    steps_file,
)
from course.runs.user_folder import protect_compile_cache
from course.training import attempts, hooks
from course.training.attempts import attempt
from course.training.precision import half_units, resolve
from trainspeed import measured_memory as memory
from trainspeed.energy import driver_version
from trainspeed.resources import core_count, memory_bytes

TRACKER = "course.training.trackers:Tracker"
TRACE_FILE = "trace.json.gz"  # Chrome's trace format, which Perfetto opens too
RANK_WAIT_S = 3.0  # how long a rank waits for the files of other ranks
RANK_FIELDS = "device machine step_s load_s watts peak_gib host_gib epochs weights_by extra"
# By default, the streams of a process share 8 connections to the GPU. Decoding the next batch would
# wait for a complete step that another stream has put into the same connection.
CONNECTIONS = ("CUDA_DEVICE_MAX_CONNECTIONS", "32")


@contextmanager
def recording() -> Iterator[Recorder]:
    """Provide this process's run: its config, and methods that store what it measures.

    If you start a script yourself (`python exercises/train.py`), it trains the quick baseline,
    prints a summary, and writes nothing, which suits a debugger. An exception is recorded as `oom`
    if memory ran out, else as `failed`, and raised again; so is an end before the last step. If
    a hook ends the run, its status is `cancelled`, with everything it measured.
    """
    protect_compile_cache()
    folder = os.environ.get(FOLDER_VARIABLE)
    run = Run(Path(folder)) if folder else None
    if run and run.config.format == "gpu_decode":  # before CUDA starts
        os.environ.setdefault(*CONNECTIONS)
    recorder = Recorder(run)
    if not recorder.config.memory_gib:  # with a limit, freed memory must be returned
        memory.keep_freed()
    exited = None  # by exit(), which is no error if the training is complete
    try:
        try:
            yield recorder
        except SystemExit as error:
            if error.code not in (None, 0):
                raise
            exited = error
        recorder.check_complete(exited)
    except hooks.RunEnded as reason:
        recorder.finish("cancelled", error=str(reason))
        return
    except (SystemExit, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # torch's CheckpointException is no Exception
        status = "oom" if memory.is_out_of_memory(error) else "failed"
        message = failures.summarize(error)
        if run and failures.fault_of(message) == "disk":
            remove_unfinished(run.folder)
        prefix = f"rank {recorder.rank}: " if recorder.world_size > 1 else ""
        recorder.finish(status, error=prefix + message)
        raise
    if distributed.is_initialized():
        distributed.destroy_process_group()
    if recorder.is_interrupted:
        sys.exit(GO_ON)  # without a record: the supervisor starts the script again
    recorder.finish("ok")
    if exited:
        raise exited


class Recorder:
    """Collects the fields of the record, and writes it once at the end, on rank 0."""

    def __init__(self, run: Run | None) -> None:
        self._reports_steps = run is None or run.reports_steps
        requested = run.config if run else _quick_config()
        # A script with a loop of its own need not scale its loss.
        self.config: Config = resolve(requested, scales_loss=self._reports_steps)
        self.rank = int(os.environ.get("RANK", 0))
        self.local_rank = int(os.environ.get("LOCAL_RANK", 0))  # within its node
        self.world_size = int(os.environ.get("WORLD_SIZE", 1))
        self._run = run
        self._is_main = run is not None and self.rank == 0
        self._values: dict[str, Any] = {"epochs": [], "config": asdict(self.config)}
        self._line_break = ""
        self.is_interrupted = False  # whether this process ends before the run does
        self.before_epoch: Callable[[], None] = lambda: None  # hooks of the meter
        self.before_end: Callable[[], None] = lambda: None
        self.steps_missing: Callable[[], str] | None = None
        if run:
            with suppress(OSError):  # a full disk
                (run.folder / OPEN.format(rank=self.rank)).touch()
        names = [*run.launched.get("hooks", [])] if run else []
        names += [TRACKER] * bool(self._is_main and self.config.tracker)
        self.hooks: list[hooks.Hook] = [hooks.load(name)(self) for name in names]

    @property
    def values(self) -> Mapping[str, Any]:
        """The fields of the record so far."""
        return self._values

    def set(self, **values: Any) -> None:
        """Set fields of the record."""
        self._values.update(values)

    def epoch(self, **values: float) -> None:
        """Add the results of an epoch, such as val_loss and val_top1; the last ones count.

        Raises:
            RunEnded: a hook ends the run here.
        """
        self.before_epoch()
        self._values["epochs"].append(values)
        number = len(self._values["epochs"])
        if self._is_main:
            attempt(f"{EPOCHS}: results of epoch {number}", self._append_epoch, values)
        if self.rank == 0:
            numbers = {key: v for key, v in values.items() if isinstance(v, int | float)}
            results = ", ".join(f"{name} {value:.4g}" for name, value in numbers.items())
            print(f"epoch {number} validated: {results}", flush=True)
        self.set(**{key: value for key, value in values.items() if key.startswith("val_")})
        for hook in self.hooks:
            attempt(f"the result of {type(hook).__name__}", hook.epoch, number, values)

    def _append_epoch(self, values: dict[str, float]) -> None:
        with (self._run.folder / EPOCHS).open("a") as file:
            file.write(json.dumps(values) + "\n")

    def complete_epochs(self, sets: Any) -> Config:
        """Return the config with its numbers of steps, if an epoch is all images once.

        Args:
            sets: a course.data.loader.ImageSets.

        Raises:
            ValueError: a batch is more than all training images.
        """
        cfg, changes = self.config, {}
        if cfg.steps == 0:
            batches = len(sets.train) / cfg.batch_size
            steps = math.floor(batches) if cfg.drop_last else math.ceil(batches)
            if not steps:
                raise ValueError(
                    f"batch_size={cfg.batch_size} is more than the {len(sets.train)} training "
                    f"images, and steps=0 takes each image once: lower batch_size"
                )
            # In a tiny set, no step would be measured.
            warmup = min(cfg.warmup_steps, cfg.epochs * steps - 1)
            changes = {"steps": steps, "warmup_steps": warmup}
        if cfg.val_steps < 0:
            changes["val_steps"] = math.ceil(len(sets.val) / cfg.batch_size)
        self.config = replace(cfg, **changes)
        self.set(config=asdict(self.config))
        return self.config

    @property
    def run(self) -> Run | None:
        """The run whose folder gets what is measured."""
        return self._run

    def write_steps(self, rows: list[dict[str, Any]]) -> None:
        """Append finished steps to this rank's file. Training continues if the disk is full."""
        for hook in self.hooks:
            attempt(f"the rows of {type(hook).__name__}", hook.steps_finished, rows)
        if self._run is None or not rows:
            return
        name = steps_file(self.rank)
        try:
            with (self._run.folder / name).open("a") as file:
                file.write(self._line_break)
                file.writelines(json.dumps(row) + "\n" for row in rows)
            self._line_break = ""
        except OSError as error:
            self._line_break = "\n"  # the last line may be incomplete
            print(f"{name} misses {len(rows)} steps: {error}", file=sys.stderr)

    def keep_steps(self, first: int) -> None:
        """Keep the steps and epochs before step `first` that an earlier process of this run wrote.

        If the last step before `first` ended an epoch, this epoch is validated again, because the
        earlier process may have ended during its validation.
        """
        if self._run is None:
            return
        epochs = max(first - 1, 0) // self.config.steps
        if self._is_main:
            self._values["epochs"] += self._filter(EPOCHS, lambda number, row: number < epochs)
        steps = self._filter(steps_file(self.rank), lambda number, row: row["step"] < first)
        if steps:  # they are the only losses if no step is left
            self.set(first_loss=steps[0]["loss"], last_loss=steps[-1]["loss"])

    def _filter(self, name: str, wanted: Callable[[int, dict], bool]) -> list[dict[str, Any]]:
        """Remove all rows of a file that are not wanted, and return the others."""
        path, rows = self._run.folder / name, []
        if not path.exists():
            return []
        for line in path.read_text().splitlines():
            with suppress(ValueError):  # incomplete: the process was killed
                rows.append(json.loads(line))
        rows = [row for number, row in enumerate(rows) if wanted(number, row)]
        write_atomically(path, "".join(json.dumps(row) + "\n" for row in rows))
        return rows

    def mark_interrupted(self) -> None:
        """End this process without a record; the supervisor starts another that continues."""
        self.is_interrupted = True
        print("asked to end: saved, and another process continues from here", flush=True)

    def save_trace(self, profiler: torch.profiler.profile) -> None:
        """Write a profiler's trace into the run's folder; pass this as `on_trace_ready`."""
        if not self._is_main:
            return
        path = self._run.folder / TRACE_FILE
        try:
            profiler.export_chrome_trace(str(path))
            self.set(trace=TRACE_FILE)
        except Exception as error:
            path.unlink(missing_ok=True)
            print(f"the trace could not be written: {error}", file=sys.stderr)

    def save_weights(self, model: torch.nn.Module | dict[str, torch.Tensor]) -> None:
        """Write weights.pt, if the config requests it; the record's `weights_by` lists the ranks.

        Args:
            model: the network, or its state dict.

        Raises:
            OSError: the disk is full; no incomplete file is left.
        """
        if self._run is None or not self.config.save_weights:
            return
        state = model if isinstance(model, dict) else model.state_dict()
        with complete_file(self._run.folder / "weights.pt", sync=False) as file:
            torch.save(state, file)
        self.set(weights_by=[self.rank])
        for hook in self.hooks:
            hook.weights_saved()

    def ready(self) -> None:
        """Tell hooks that the preparation has ended; without hooks, do nothing."""
        for hook in self.hooks:
            hook.ready()

    def keep_weights(self, net: torch.nn.Module) -> None:
        """Let hooks keep the current weights; without hooks, do nothing."""
        for hook in self.hooks:
            hook.keep_weights(net)

    def save_network(self, net: torch.nn.Module) -> None:
        """Let hooks save the computation of a network that is not part of the course.

        Call it after `save_weights`, because it takes seconds.
        """
        for hook in self.hooks:
            hook.save_network(net)

    @property
    def folder(self) -> Path | None:
        """The run's folder on rank 0; None on other ranks and without a run."""
        return self._run.folder if self._is_main else None

    @property
    def rank_folder(self) -> Path | None:
        """The run's folder on any rank; None without a run."""
        return self._run.folder if self._run else None

    @property
    def checkpoints(self) -> Path:
        """The folder of the run's checkpoints; without a run, a new temporary folder."""
        if self._run is None:
            return Path(tempfile.mkdtemp(prefix="checkpoints-"))
        folder = self._run.folder / CHECKPOINTS
        folder.mkdir(exist_ok=True)
        return folder

    @property
    def checkpoint(self) -> Path:
        """The folder into which all ranks write their parts of a checkpoint.

        Raises:
            RuntimeError: there is no run, so no one could find the checkpoint.
        """
        if self._run is None:
            raise RuntimeError("save_shards=True needs a run's folder: start it with launch(…)")
        return self._run.folder / CHECKPOINT

    @property
    def resume_checkpoint(self) -> Path:
        """The checkpoint of the run named by `config.resume`, in the same folder of runs.

        Raises:
            RuntimeError: that run has no complete checkpoint, or nothing is left to train.
        """
        own_folder = self._run.folder if self._run else Path("runs/by_hand")
        path = own_folder.parent / self.config.resume / CHECKPOINT
        if not (path / METADATA).exists():
            raise RuntimeError(
                f"resume={self.config.resume!r}: there is no whole checkpoint in {path}. Use the "
                f"name of a run that ended with save_shards=True"
            )
        completed = Run(path.parent).requested_config.epochs
        if self.config.epochs <= completed:
            raise RuntimeError(
                f"resume={self.config.resume!r}: that run has completed {completed} epochs, and "
                f"epochs={self.config.epochs} leaves nothing to train. Set epochs to "
                f"{completed + 1} or more"
            )
        return path

    def check_complete(self, exited: SystemExit | None) -> None:
        """Refuse an end before the last step of the config.

        Args:
            exited: the exception by which the script ended, if it called exit().

        Raises:
            RuntimeError: steps or epochs are missing, and neither a budget nor the images ended.
        """
        missing = "before its first step" if exited and self._reports_steps else ""
        if self.steps_missing:
            missing = self.steps_missing()
        if missing and not self.is_interrupted:
            error = RuntimeError(failures.ended_early(missing, is_exit=exited is not None))
            raise error.with_traceback(exited.__traceback__ if exited else None) from None

    @property
    def is_over(self) -> bool:
        """Whether the run has its status, or this process is about to end."""
        return "status" in self._values or self.is_interrupted

    def group_size(self) -> int:
        """Return how many processes train together, including this one."""
        return distributed.get_world_size() if distributed.is_initialized() else 1

    def check_process_group(self) -> None:
        """Refuse several processes that train separately, and simulated hosts without NCCL.

        The record would mix up the processes, or name hosts between which nothing was sent.

        Raises:
            RuntimeError: there are several processes, but no process group; or it has no NCCL.
        """
        if self.world_size > 1 and self.group_size() == 1:
            is_member = distributed.is_initialized()
            how = "each in a separate process group" if is_member else "in no process group"
            raise RuntimeError(
                f"{self.world_size} processes were started, but this script joins them {how}: "
                f"each would train alone. Fill in TODO process_group, or launch with gpus=1"
            )
        if self.config.hosts > 1 and "nccl" not in distributed.get_backend_config():
            raise RuntimeError(
                f"hosts={self.config.hosts}: only NCCL can simulate hosts, and these ranks use "
                f"{distributed.get_backend_config()}: set hosts=1, or launch on NVIDIA GPUs"
            )

    def describe(self, device: torch.device) -> dict[str, Any]:
        """Return the record's fields about the machine: device, machine, hardware, versions."""
        cpu = cpu_name()
        name = cpu if device.type == "cpu" else device_name(device)
        cores = core_count()
        return {
            "device": device.type,
            "machine": f"{name}, {cores} core{'s'[: cores != 1]}" if device.type == "cpu" else name,
            "hardware": {
                "cpu": cpu,
                "cores": cores,
                "threads": torch.get_num_threads(),
                "memory_gib": round(memory_bytes()[0] / GIB, 1),
                "device_gib": round(memory.total_gib(device), 1),
                "half_units": half_units(device),
            },
            "versions": {
                "python": platform.python_version(),
                "torch": torch.__version__,
                "cuda": torch.version.cuda if device.type == "cuda" else "",
                "driver": driver_version(device),
            },
        }

    def finish(self, status: str, error: str = "") -> None:
        """Write the record; without a run, print a summary of it."""
        self.before_end()
        for hook in self.hooks:
            attempt(f"the result of {type(hook).__name__}", hook.end, status)
        with suppress(AttributeError, OSError):  # Windows has none
            self.set(load=os.getloadavg()[0] / os.cpu_count())
        if self._run is None:
            if self.rank == 0:
                keys = ("device", "images_per_s", "peak_gib", "last_loss", "val_top1")
                print(status, error, *(f"{key}={self._values.get(key)}" for key in keys))
            return
        if evidence := self._values.get("evidence"):
            problems = [text for text in attempts.problems if text.startswith("evidence")]
            evidence = replace(evidence, problems=problems, is_complete=status == "ok")
            self.set(evidence=evidence)
        if self.world_size > 1:
            self._write_rank(status, error)
        with suppress(OSError):  # a rename needs no space on a full disk
            opened = self._run.folder / OPEN.format(rank=self.rank)
            if self.world_size > 1:  # else the record shows that it has ended
                opened.rename(self._run.folder / ENDED.format(rank=self.rank))
            opened.unlink(missing_ok=True)
        # The first record counts; a rank that only lost its connection to another rank knows less.
        if status != "ok" and failures.is_echo(error):
            time.sleep(RANK_WAIT_S)
        self.set(status=status, error=error)
        if status == "ok":
            if not self._is_main:
                return
            self._wait_for_ranks()  # so that a run with a record has the files of all ranks
        write_record(self._run.folder, record_of(self._run, self._values))

    def _wait_for_ranks(self) -> None:
        deadline = time.monotonic() + RANK_WAIT_S  # a rank may be unable to write
        while len(self._run.ranks) < self.world_size > 1 and time.monotonic() < deadline:
            time.sleep(0.02)

    def _write_rank(self, status: str, error: str) -> None:
        """Write what only this rank knows, next to the record of rank 0."""
        values = {"rank": self.rank, "host": platform.node(), "status": status, "error": error}
        values |= {key: self._values.get(key) for key in RANK_FIELDS.split()}
        values |= {"evidence": to_values(self._values.get("evidence", Evidence()))}
        try:
            path = self._run.folder / rank_file(self.rank)
            write_atomically(path, json.dumps(values, indent=1))
        except OSError as problem:
            print(f"{rank_file(self.rank)} could not be written: {problem}", file=sys.stderr)


def _quick_config() -> Config:
    """Return what a script computes that is started without a run: its quick first rung."""
    name = Path(sys.argv[0]).name
    first = next((x for x, cfg in RUNGS.items() if cfg.script == name), "baseline")
    return rung(first, quick=True)


def device_name(device: torch.device) -> str:
    """Return the accelerator's name, or its type if the backend has none (Apple's MPS)."""
    module = torch.get_device_module(device)
    return module.get_device_name() if hasattr(module, "get_device_name") else device.type


def cpu_name() -> str:
    """Return the CPU's name as the system reports it."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if "model name" in line:
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
