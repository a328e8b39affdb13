"""The job's side of a run: what the training process writes into its folder."""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import torch

from course.config import GIB, Config, rung
from course.runs import failures
from course.runs.files import whole_file, write_atomically
from course.runs.record import write_record
from course.runs.restarts import CHECKPOINT, CHECKPOINTS, EPOCHS, GO_ON
from course.runs.run import FOLDER_VARIABLE, RACE_BEGAN, Run, rank_file, record_of, steps_file
from course.training import memory, profiling, trials
from course.training.energy import driver_version
from course.training.precision import HALF, has_units, resolve
from course.training.racing import network
from course.training.racing.watch import Watch
from course.training.restart import checkpoint

TRACE_FILE = "trace.json.gz"  # Chrome's trace format, which Perfetto opens too
ECHO_S = 3.0  # so long a rank waits for what others have to write
RANKS_OWN = (
    "device",
    "machine",
    "step_s",
    "load_s",
    "watts",
    "peak_gib",
    "host_gib",
    "evidence",
    "epochs",
    "weights_by",
    "race",
)
# Streams share a GPU's connections, 8 unless told. What decodes the next batch would come to wait
# behind a whole step that another stream has put into the same one.
CONNECTIONS = ("CUDA_DEVICE_MAX_CONNECTIONS", "32")
# Messages go before kernels that wait for the same GPU. The algebra's leave little of one free, and
# four ranks' step took 0.1 ms longer without (research/ddp_algebra_h200_x4.jsonl).
MESSAGES_FIRST = ("TORCH_NCCL_HIGH_PRIORITY", "1")


class Pruned(Exception):
    """This trial of a search ends here, and the message says why."""


@contextmanager
def recording() -> Iterator[Recorder]:
    """The run that this process is: gives its config, takes what it measured.

    Started by hand (`python exercises/train.py`) there is no run: the quick baseline is
    trained, a summary printed and nothing written, which suits a debugger. An exception is
    recorded, as `oom` where memory ran out and as `failed` otherwise, and raised again. A trial
    of a search that is not worth going on ends as `cancelled`, with all that it measured.
    """
    folder = os.environ.get(FOLDER_VARIABLE)
    launched = Run(Path(folder)) if folder else None
    if launched and launched.config.format == "gpu_decode":  # before anything of CUDA is used
        os.environ.setdefault(*CONNECTIONS)
    if launched and launched.config.algebra:  # before ranks meet
        os.environ.setdefault(*MESSAGES_FIRST)
    run = Recorder(launched)
    if not run.config.memory_gib:  # where memory is short, what was freed must be given back
        memory.keep_freed()
    try:
        yield run
    except Pruned as end:
        run.finish("cancelled", error=f"{trials.PRUNED} {end}")
        return
    except (SystemExit, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # torch's CheckpointException is no Exception
        status = "oom" if memory.is_out_of_memory(error) else "failed"
        told = failures.in_one_line(error)
        if launched and failures.fault_of(told) == "disk":
            checkpoint.remove_unfinished(launched.folder)
        run.finish(status, error=f"rank {run.rank}: {told}" if run.world_size > 1 else told)
        raise
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    if run.is_interrupted:
        sys.exit(GO_ON)  # without a record: whoever started it starts it again
    run.finish("ok")


class Recorder:
    """Collects the fields of the record, and writes it once at the end (on rank 0 alone)."""

    def __init__(self, run: Run | None) -> None:
        races = run is not None and "race" in run.launched
        requested = run.config if run else rung("baseline", quick=True)
        self.config: Config = resolve(requested, scales_loss=not races)  # entries need not scale it
        self.rank = int(os.environ.get("RANK", 0))
        self.local_rank = int(os.environ.get("LOCAL_RANK", 0))  # within its node
        self.world_size = int(os.environ.get("WORLD_SIZE", 1))
        self._everyone = run  # every rank's; the record is for rank 0 alone to write
        self._run = run if self.rank == 0 else None
        self._by_hand = run is None and self.rank == 0
        self._values: dict[str, Any] = {"epochs": [], "config": asdict(self.config)}
        self._line_break = ""
        self.is_interrupted = False  # does this process end before the run does?
        self.before_epoch: Callable[[], None] = lambda: None  # the meter's end of what it watches
        self.before_end: Callable[[], None] = lambda: None  # and of what it watches to the end
        self._began = time.perf_counter()
        self._started_at = datetime.now().isoformat(timespec="seconds")
        on_gpu = self.config.device != "cpu"
        self._watch = Watch(self._began, on_gpu, self.local_rank) if races else None
        if self._watch and self._run:
            (run.folder / RACE_BEGAN).touch()

    def set(self, **values: Any) -> None:
        """Set fields of the record, by name."""
        self._values.update(values)

    def epoch(self, **values: float) -> None:
        """Add the figures of one epoch, such as val_loss and val_top1; the last ones count."""
        self.before_epoch()
        self._values["epochs"].append(values)
        if self._run and self.config.save_every:
            with (self._run.folder / EPOCHS).open("a") as file:
                file.write(json.dumps(values) + "\n")
        if self.rank == 0:
            numbers = {key: each for key, each in values.items() if isinstance(each, int | float)}
            said = ", ".join(f"{name} {value:.4g}" for name, value in numbers.items())
            print(f"epoch {len(self._values['epochs'])} validated: {said}", flush=True)
        self.set(**{key: value for key, value in values.items() if key.startswith("val_")})
        self._ask_to_go_on(values)

    def _ask_to_go_on(self, values: dict[str, float]) -> None:
        """Of a trial of a search: report the epoch. Raises Pruned: it is the last."""
        asked = self._run.launched.get("trial") if self._run else None
        if not asked or trials.VALUE not in values:
            return
        number = len(self._values["epochs"])
        root = self._run.folder.parent
        if why := trials.report(root, asked, number, values[trials.VALUE]):
            raise Pruned(f"after epoch {number} of {self.config.epochs}: {why}")

    def write_steps(self, rows: list[dict[str, Any]]) -> None:
        """Append finished steps to this rank's file; a full disk is reported, training goes on."""
        if self._everyone is None or not rows:
            return
        name = steps_file(self.rank)
        try:
            with (self._everyone.folder / name).open("a") as file:
                file.write(self._line_break)
                file.writelines(json.dumps(row) + "\n" for row in rows)
            self._line_break = ""
        except OSError as error:
            self._line_break = "\n"  # the last line may be cut: begin anew
            print(f"{name} misses {len(rows)} steps: {error}", file=sys.stderr)

    def keep_steps(self, first: int) -> None:
        """Of what an earlier process of this run wrote, keep what lies before step `first`.

        An epoch whose last step was the last before it is validated again: that of the earlier
        process may have been cut off.
        """
        if self._everyone is None:
            return
        epochs = max(first - 1, 0) // self.config.steps
        kept = self._keep(EPOCHS, lambda number, row: number < epochs) if self._run else []
        self._values["epochs"] += kept
        steps = self._keep(steps_file(self.rank), lambda number, row: row["step"] < first)
        if steps:  # all there is, where no step is left to do
            self.set(first_loss=steps[0]["loss"], last_loss=steps[-1]["loss"])

    def _keep(self, name: str, wanted: Callable[[int, dict], bool]) -> list[dict[str, Any]]:
        """The rows of a file that are wanted; the others are taken out of it."""
        path, rows = self._everyone.folder / name, []
        if not path.exists():
            return []
        for line in path.read_text().splitlines():
            with suppress(ValueError):  # it was killed while it wrote
                rows.append(json.loads(line))
        kept = [row for number, row in enumerate(rows) if wanted(number, row)]
        write_atomically(path, "".join(json.dumps(row) + "\n" for row in kept))
        return kept

    def interrupted(self) -> None:
        """This process ends, and the run goes on in another: whoever started it begins anew."""
        self.is_interrupted = True
        print("asked to end: saved, and another process goes on from here", flush=True)

    def save_trace(self, profiler: torch.profiler.profile) -> None:
        """Write a profiler's trace into the run's folder: for its `on_trace_ready`."""
        if self._run is None:
            return
        try:
            profiling.write(profiler, self._run.folder / TRACE_FILE)
            self.set(trace=TRACE_FILE)
        except (OSError, RuntimeError) as error:
            print(f"the trace could not be written: {error}", file=sys.stderr)

    def save_weights(self, model: torch.nn.Module | dict[str, torch.Tensor]) -> None:
        """Write weights.pt, where the config asks for it; `weights_by` tells which ranks did.

        Args:
            model: the network, or what its `state_dict()` would be.

        Raises:
            OSError: the disk is full; nothing of the file is left.
        """
        if self._everyone is None or not self.config.save_weights:
            return
        state = model if isinstance(model, dict) else model.state_dict()
        with whole_file(self._everyone.folder / "weights.pt", sync=False) as file:
            torch.save(state, file)
        self.set(weights_by=[self.rank])
        if self._watch:  # the time is taken; from here on nothing counts
            self.set(race=self._watch.stop())

    def ready(self) -> None:
        """In a race: what came before the first step is over, and is shown apart."""
        if self._watch:
            self._watch.ready()

    def keep_weights(self, net: torch.nn.Module) -> None:
        """In a race: keep them for the referee, who can then say how good they were when."""
        if self._watch and self.rank == 0:
            self._watch.keep(net)

    def save_network(self, net: torch.nn.Module) -> None:
        """In a race: what the network computes, if it is none of the course's.

        Call it after `save_weights`, which ends the time: this takes seconds.
        """
        if self._watch and self._run:
            network.write(net, self.config.image_px, self._run.folder)

    @property
    def folder(self) -> Path | None:
        """The run's folder; None started by hand, and on every rank but the first."""
        return self._run.folder if self._run else None

    @property
    def all_folder(self) -> Path | None:
        """The run's folder, on every rank; None started by hand."""
        return self._everyone.folder if self._everyone else None

    @property
    def checkpoints(self) -> Path:
        """The folder of the run's checkpoints; it is there. Started by hand, one that is new."""
        if self._everyone is None:
            return Path(tempfile.mkdtemp(prefix="checkpoints-"))
        place = self._everyone.folder / CHECKPOINTS
        place.mkdir(exist_ok=True)
        return place

    @property
    def checkpoint(self) -> Path:
        """The folder into which all ranks write their parts of a checkpoint.

        Raises:
            RuntimeError: started by hand there is none, so that it could only be lost.
        """
        if self._everyone is None:
            raise RuntimeError("save_shards=True needs a run's folder: launch(…) makes one")
        return self._everyone.folder / CHECKPOINT

    @property
    def resumed(self) -> Path:
        """The checkpoint of the run that the config names, which lies beside this one's folder.

        Raises:
            RuntimeError: it has none; the message says what to do.
        """
        own = self._everyone.folder if self._everyone else Path("runs/by_hand")
        found = own.parent / self.config.resume / CHECKPOINT
        if not (found / ".metadata").exists():
            raise RuntimeError(
                f"resume={self.config.resume!r}: there is no whole checkpoint in {found}. Name a "
                f"run that ended with save_shards=True, as run.name says it"
            )
        return found

    @property
    def is_kept(self) -> bool:
        """Does what this process sees go into a run's folder? Not where it is started by hand."""
        return self._everyone is not None

    @property
    def is_over(self) -> bool:
        """Has the run its status, or this process its end?"""
        return "status" in self._values or self.is_interrupted

    def group_size(self) -> int:
        """How many processes train together, this one counted."""
        group = torch.distributed.is_available() and torch.distributed.is_initialized()
        return torch.distributed.get_world_size() if group else 1

    def refuse_if_not_distributed(self) -> None:
        """Several processes that train each for itself would record a figure of one as of all.

        Raises:
            RuntimeError: more than one process, and no process group.
        """
        if self.world_size > 1 and self.group_size() == 1:
            joined = torch.distributed.is_available() and torch.distributed.is_initialized()
            how = "each in a process group of its own" if joined else "in no process group"
            raise RuntimeError(
                f"{self.world_size} processes were started, but this script joins them {how}: "
                f"each would train alone. TODO 7 joins them; or launch with gpus=1"
            )

    def describe(self, device: torch.device) -> dict[str, Any]:
        """Fields that say on what the run ran: device, machine, hardware, versions."""
        cpu = cpu_name()
        name = cpu if device.type == "cpu" else device_name(device)
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        return {
            "device": device.type,
            "machine": f"{name}, {cores} cores" if device.type == "cpu" else name,
            "hardware": {
                "cpu": cpu,
                "cores": cores,
                "threads": torch.get_num_threads(),
                "memory_gib": round(psutil.virtual_memory().total / GIB, 1),
                "device_gib": round(memory.total_gib(device), 1),
                "half_units": [name for name in HALF if has_units(device, name)],
            },
            "versions": {
                "python": platform.python_version(),
                "torch": torch.__version__,
                "cuda": torch.version.cuda if device.type == "cuda" else "",
                "driver": driver_version(device),
            },
        }

    def finish(self, status: str, error: str = "") -> None:
        """Write the record; started by hand, print what it would have said."""
        self.before_end()
        if self._watch and status == "ok":
            self.set(race=self._watch.end())  # of a rank that writes no weights: now
            if self._run:
                self._watch.write(self._run.folder)
                if "machine" not in self._values:
                    self.set(**self.describe(self._watch.device))
        if self._by_hand:
            keys = ("device", "images_per_s", "peak_gib", "last_loss", "val_top1")
            found = {key: self._values.get(key) for key in keys}
            print(status, error, *(f"{key}={value}" for key, value in found.items()))
        if self.world_size > 1 and self._everyone:
            self._write_rank(status, error)
        self.set(status=status, error=error)
        # The first verdict stands, and a rank that only noticed that another left knows less.
        if status != "ok" and failures.is_echo(error):
            time.sleep(ECHO_S)
        wall_s = time.perf_counter() - self._began
        if status == "ok" and self._run:  # who sees the record is to find what all ranks wrote
            self._await_ranks()
        run = self._everyone if status != "ok" else self._run
        if run is None:
            return
        self.set(wall_s=wall_s, started_at=self._started_at)
        write_record(run.folder, record_of(run, self._values))

    def _await_ranks(self) -> None:
        deadline = time.monotonic() + ECHO_S  # one that cannot write must not hold up the others
        while len(self._run.ranks) < self.world_size > 1 and time.monotonic() < deadline:
            time.sleep(0.02)

    def _write_rank(self, status: str, error: str) -> None:
        """What this rank alone knows, beside the record, which is rank 0's."""
        own = {"rank": self.rank, "host": platform.node(), "status": status, "error": error}
        own |= {key: self._values.get(key) for key in RANKS_OWN}
        text = json.dumps(own, indent=1)
        try:
            write_atomically(self._everyone.folder / rank_file(self.rank), text)
        except OSError as problem:
            print(f"{rank_file(self.rank)} could not be written: {problem}", file=sys.stderr)


def device_name(device: torch.device) -> str:
    """The accelerator's name; its type where the backend tells no name (Apple's MPS)."""
    module = torch.get_device_module(device)
    return module.get_device_name() if hasattr(module, "get_device_name") else device.type


def cpu_name() -> str:
    """The processor's name, as the system gives it."""
    try:
        text = Path("/proc/cpuinfo").read_text()
        return next(ln.split(":", 1)[1].strip() for ln in text.splitlines() if "model name" in ln)
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
