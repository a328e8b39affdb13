"""Train small runs, and call functions of the course on a script, each in its own process.

    python -m course.checks.small_runs FOLDER

`course.checks.compare` writes requests to stdin, and reads how many runs have ended. PyTorch is
imported once; each rank of each run is then a fork, so that a script can only crash its own
process.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import json
import math
import os
import re
import resource
import secrets
import signal
import socket
import sys
import threading
import time
import traceback
import zlib
from collections import Counter
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import psutil
import torch
from PIL import Image
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.profiler import ProfilerAction

from course._compat import sign_objects, tree_leaves
from course.checks import comparable, tiny_networks
from course.checks.notes import CompileCall, Files, Notes, ShardCall
from course.checks.script_edits import compile_script
from course.config import TRACE_WAIT
from course.data import loader
from course.data.formats import convert
from course.runs.evidence import NOT_APPLICABLE, to_values
from course.runs.restarts import CHECKPOINT, CHECKPOINTS, GO_ON, INTERRUPTED
from course.runs.run import FOLDER_VARIABLE, Run
from course.training import models
from course.training.evidence import shards
from course.training.evidence.operators import layout
from course.training.recorder import Recorder, recording
from trainspeed import measured_memory as memory
from trainspeed.resources import core_count

CLASSES, TRAIN, VAL, SIDE = 6, 8, 4, 40  # the tiny set: images per class, side in pixels
PROCESSES = max(2, core_count())  # at once
CPU_S, LIMIT_S = 60, 300.0  # of each rank, and of a run on a busy machine
# A run waits that computes for less than BUSY_S in IDLE_S, which is longer than collectives wait.
IDLE_S, BUSY_S = 60.0, 0.5
GRACE_S, SAVING_S = 1.0, 20.0  # for the other ranks, once one has failed, or has saved to go on
COMPILE = torch.compile
SETTINGS = ("lr", "momentum", "weight_decay", "betas", "eps", "nesterov")


class Observed:
    """Observes a rank's training, step by step, and writes its `Notes`."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._file, self._optimizer = folder / f"notes-{rank}.json", None
        self._optimizers: list[torch.optim.Optimizer] = []
        self._network, self._pipeline, self._skipped = torch.nn.Module(), [], [0]
        self._meter: Any = None
        self.backend: Any = "inductor"  # what torch.compile uses in its place
        self.notes = Notes(is_restarted=self._file.exists())

    def note_layers(self, layers: int, is_new: bool) -> None:
        """Count the layers that compiled graphs compute in training; note a new graph's step."""
        self.notes.compiled_layers += layers
        self.notes.graphs += [len(self.notes.batches) - 1] * is_new

    def start(self) -> None:
        """Observe this process from now on."""
        from course.training.meter import Meter

        create, steps = tiny_networks.create, Meter.steps

        def created(*args: Any, **named: Any) -> torch.nn.Module:
            self._network = create(*args, **named)
            return self._network

        def observed(meter: Any, batches: Any, epoch: int) -> Any:
            if self._meter is None:
                self.notes.first = meter.step
            if meter.step < (epoch + 1) * meter.config.steps:
                self.notes.skipped.append(max(0, self._skipped[-1]))
            self._meter = meter
            for images, labels in steps(meter, batches, epoch):
                if not self.notes.batches:
                    self.write()  # now, because the process may be aborted or killed
                self._skipped = [0]  # an epoch without a batch leaves it to the next
                digest = float(images.double().mean()), float(labels.double().mean())
                self.notes.batches.append([len(images), *digest])
                self.notes.random.append(zlib.crc32(torch.get_rng_state().numpy()))
                yield images, labels

        models.create, Meter.steps, torch.compile = created, observed, self._compile
        register_optimizer_step_pre_hook(self._watch)
        before_call(Recorder, "save_trace", self._note_trace)
        comparable.observe(self.notes)
        self._observe_saving()
        before_call(Recorder, "mark_interrupted", self._note_mark)
        before_call(loader, "skip", lambda _, images: self._skipped.append(images))
        if fsdp := sys.modules.get("torch.distributed.fsdp"):
            before_call(fsdp, "fully_shard", self._note_shards)
            for phase in ("forward", "backward"):
                name = f"set_modules_to_{phase}_prefetch"
                before_call(fsdp.FSDPModule, name, partial(self._note_prefetch, phase))
        if pipelining := sys.modules.get("torch.distributed.pipelining"):
            note = lambda part, *_, **__: self._pipeline.append(part)  # noqa: E731
            for name in pipelining.__all__:
                if name.startswith("Schedule") or name == "PipelineStage":
                    before_call(getattr(pipelining, name), "__init__", note)

    def _observe_saving(self) -> None:
        """Count calls of torch.save, and note which checkpoints fsync had written when renamed."""
        written = set()

        def content(file: int | str | Path) -> tuple[int, ...]:
            status = os.stat(file)
            return status.st_dev, status.st_ino, status.st_size

        def counted(*_: Any, **options: Any) -> None:
            if threading.current_thread() is threading.main_thread():  # not async_save's
                self.notes.saves += 1
                self.write()  # now, because another rank's error may end this process

        def synced(file: Any) -> None:
            written.add(content(file if isinstance(file, int) else file.fileno()))

        def renaming(event: str, arguments: tuple[Any, ...]) -> None:
            if event not in ("os.rename", "os.link"):  # also of os.replace
                return
            source, target = (Path(os.fsdecode(path)) for path in arguments[:2])
            if CHECKPOINTS in target.parts and source.resolve() != target.resolve():
                is_near = source.resolve().is_relative_to(self._file.parent.resolve())
                for file in filter(Path.is_file, (source, *source.rglob("*"))):
                    name = target.name if file == source else file.name
                    when = ("after" if content(file) in written else "before") + " fsync"
                    self.notes.renamed[name] = when if is_near else "from another folder"

        before_call(torch, "save", counted)
        before_call(os, "fsync", synced)
        before_call(os, "fdatasync", synced)
        sys.addaudithook(renaming)

    def note_autocast(self, *_: Any) -> None:
        """Note whether autocast is on where the network is called, in training and validation."""
        where = "the forward pass" if torch.is_grad_enabled() else "validation"
        self.notes.autocast[f"autocast in {where}"] = torch.is_autocast_enabled("cpu")

    def _note_mark(self, _: Any) -> None:
        self.notes.is_marked = True

    def _note_trace(self, _: Any, profiler: torch.profiler.profile) -> None:
        actions = [profiler.schedule(step) for step in range(TRACE_WAIT)]
        trace = {"recording of input shapes": bool(profiler.record_shapes)}
        trace["warm-up of the profiler"] = ProfilerAction.WARMUP in actions
        self.notes.traces.append(trace)

    def note_images(self, _: Any, images: torch.Tensor) -> None:
        """Note the memory layout of the images that a network gets in training."""
        if torch.is_grad_enabled():
            self.notes.layouts.append(layout(images))

    def _note_shards(self, module: Any, **options: Any) -> None:
        """Note a call of fully_shard, with PyTorch's defaults."""
        mesh, policy, reshard = map(options.get, ("mesh", "mp_policy", "reshard_after_forward"))
        is_root = module is self._network
        everyone = [*range(int(os.environ["WORLD_SIZE"]))]
        parts = module if isinstance(module, list | tuple) else [module]
        types = [getattr(policy, name, None) for name in ("param_dtype", "reduce_dtype")]
        call = ShardCall(
            of="the network" if is_root else "units",
            weights=sum(1 for part in parts for _ in part.parameters()),
            types=str(types) * bool(types[0]),
            reshard=not is_root if reshard is None else reshard,
            mesh=mesh.mesh.tolist() if mesh else everyone,
            groups=[group.group_name for group in mesh.get_all_groups()] if mesh else [],
        )
        self.notes.shard_calls.append(call)

    def _note_prefetch(self, phase: str, module: Any, modules: list[Any]) -> None:
        """Note for a block which blocks it gathers ahead."""
        from torch.distributed.fsdp import fully_shard  # which the script has imported

        # A unit has one state, whichever of its modules sets it.
        states = map(fully_shard.state, models.blocks(self._network))
        numbers = {state: at for at, state in enumerate(dict.fromkeys(states))}
        if modules:
            number, *ahead = (numbers.get(fully_shard.state(x)) for x in (module, *modules))
            words = f"units that unit {number} gathers in {phase}"
            self.notes.prefetch[words] = ", ".join(map(str, dict.fromkeys(ahead)))

    def note_block(self, block: torch.nn.Module, *_: Any) -> None:
        """Note a block that backward computes again."""
        if self._meter and self._meter.phase == "backward":
            blocks = [x for x in self._network.modules() if isinstance(x, tiny_networks.Block)]
            self.notes.repeated.append(blocks.index(block))

    def _compile(self, model: Any = None, **options: Any) -> Any:
        """Call torch.compile, and note its arguments and whether training had begun."""
        if model is None:  # as a decorator with arguments
            return lambda target: self._compile(target, **options)
        module = getattr(model, "__self__", model)
        parts = module.modules() if isinstance(module, torch.nn.Module) else ()
        is_of_ddp = any(isinstance(part, DistributedDataParallel) for part in parts)
        call = CompileCall(options.get("mode") or "default", is_of_ddp, bool(self.notes.batches))
        if not options.get("disable"):
            self.notes.compile_calls.append(call)
        if options.setdefault("backend", "inductor") == "inductor":
            options["backend"] = self.backend
        return COMPILE(model, **options)

    def _watch(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Note an optimizer's updates after the script's own hooks, which may change settings."""
        if not any(optimizer is known for known in self._optimizers):
            self._optimizers.append(optimizer)
            optimizer.register_step_pre_hook(self._note)

    def _note(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if not self.notes.batches:  # a state dict has let it create its state
            return
        if not self._optimizer:
            weights = [weight for group in optimizer.param_groups for weight in group["params"]]
            states = [value for state in optimizer.state.values() for value in state.values()]
            names = {id(weight): name for name, weight in self._network.named_parameters()}
            self.notes.decay = {
                names[id(weight)]: group["weight_decay"]
                for group in optimizer.param_groups
                for weight in group["params"]
                if id(weight) in names and "weight_decay" in group
            }
            buffers = [*self._network.buffers()]
            parts = {"weights": weights, "momentum": states, "buffers": buffers}
            self.notes.began = {f"norm of the {x}": length(parts[x]) for x in parts}
        self._optimizer = optimizer
        groups, norms = [], []
        for group in optimizer.param_groups:
            trained = [weight for weight in group["params"] if weight.grad is not None]
            filters = sum(weight.ndim > 1 for weight in trained)
            settings = {name: group[name] for name in SETTINGS if name in group}
            groups.append([settings, filters, len(trained) - filters])
            norms += [float(shards.part(weight.grad).norm()) for weight in trained]
        self.notes.groups.append(groups)
        self.notes.gradients[str(len(self.notes.batches) - 1)] = math.hypot(*norms)

    def write(self) -> None:
        """Write the notes so far."""
        if self._meter and self.notes.shapes is NOT_APPLICABLE:  # now all parts exist
            names = self._network.named_parameters()
            self.notes.shapes = {name: [*weight.shape] for name, weight in names}
            stages = [part for part in self._pipeline if hasattr(part, "num_stages")]
            self.notes.stages = [f"{part.stage_index} of {part.num_stages}" for part in stages]
            for schedule in [part for part in self._pipeline if part not in stages]:
                self.notes.schedule = type(schedule).__name__
                self.notes.scale_grads = schedule.scale_grads
        groups = self._optimizer.param_groups if self._optimizer else []
        weights = [shards.part(w.detach()).double() for group in groups for w in group["params"]]
        self.notes.weights = [[[*w.shape], float(w.sum()), float(w.norm())] for w in weights]
        self.notes.settings = {
            "precision of float32 products": torch.get_float32_matmul_precision(),
            "TF32 in cuDNN": torch.backends.cudnn.allow_tf32,
            "detection of anomalies": torch.is_anomaly_enabled(),
            "default type": str(torch.get_default_dtype()),
        }
        self._file.write_text(json.dumps(to_values(self.notes)))


def before_call(owner: Any, name: str, note: Callable[..., None]) -> None:
    """Let each call of a function or method first call `note` with the same arguments."""
    real = getattr(owner, name)

    @wraps(real)
    def noted(*args: Any, **options: Any) -> Any:
        note(*args, **options)
        return real(*args, **options)

    setattr(owner, name, noted)


def length(values: list[Any]) -> float:
    """Return the sum of the norms of the tensors among some values."""
    return sum(float(shards.part(x).double().norm()) for x in values if torch.is_tensor(x))


def serve(root: Path) -> None:
    """Work through requests, one per line of stdin.

    Whenever runs have ended, answer with their number; at the end with "done", or an error.
    """
    os.environ["COURSE_DATA"] = str(root / "data" / "default")
    sign_objects(secrets.token_bytes(32))
    answers = os.fdopen(os.dup(1), "w")
    requests = os.fdopen(os.dup(0))
    empty = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):  # scripts must neither read requests nor write answers
        os.dup2(empty, stream)
    memory.host_gib = lambda: 0.0  # which takes a sixth of a small run's time
    for line in requests:
        try:
            work(root, json.loads(line), lambda ended: print(ended, file=answers, flush=True))
            answer = "done"
        except Exception as error:
            answer = f"{type(error).__name__}: {error}".splitlines()[0]
        print(answer, file=answers, flush=True)


def work(root: Path, request: dict[str, Any], report: Callable[[int], None]) -> None:
    """Execute all tasks of a request; report how many have ended."""
    write_images(root / "data" / "tiny", with_shards=request["shards"])
    for name in request["imports"]:
        with contextlib.suppress(Exception):  # the script that imports it reports it
            importlib.import_module(name)
    gc.freeze()  # forks then leave these objects' pages shared
    pending = [Task(root / place, ranks, called) for place, ranks, called in request["tasks"]]
    active: list[Task] = []
    ended = 0
    while pending or active:
        ranks = sum(len(task.pids) for task in active)
        while pending and (not active or ranks + pending[0].ranks <= PROCESSES):
            if pending[0].needs in [task.folder for task in active]:
                break
            active.append(pending.pop(0))
            active[-1].start()
            ranks += active[-1].ranks
        count, active = len(active), [task for task in active if task.is_active()]
        if len(active) < count:
            ended += count - len(active)
            report(ended)
        time.sleep(0.005)


class Task:
    """One small run, or one call of a function of the course, with a process for each rank."""

    def __init__(self, folder: Path, ranks: int, called: str) -> None:
        self.folder, self.ranks, self._called = folder, ranks, called
        config = Run(folder).requested_config
        self.needs = folder.parent / config.resume if config.resume else None
        self._gets_sigterm = bool(config.sigterm_step)
        self.pids: dict[int, int] = {}  # of the active ranks
        self._ends_s, self._attempts, self._has_failed = 0.0, 0, False
        self._codes: set[int] = set()  # of ranks that have ended
        self._computed_s, self._computed_at, self._looked_at = 0.0, 0.0, 0.0

    def start(self) -> None:
        """Fork a process for each rank."""
        self._computed_at = time.monotonic()
        self._ends_s, self._attempts = self._computed_at + LIMIT_S, self._attempts + 1
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        for rank in range(self.ranks):
            if (pid := os.fork()) == 0:
                self._work(rank, port)
            self.pids[rank] = pid

    def _work(self, rank: int, port: int) -> None:
        code = 1
        try:
            for stream, name in ((1, "printed"), (2, "errors")):
                path = self.folder / f"{name}-{rank}.txt"
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
            # As on two nodes, of which other processes have local rank 0: none can be confused.
            local_rank = 1 + rank % -(-self.ranks // 2) if self.ranks > 1 else 0
            env = {"RANK": rank, "LOCAL_RANK": local_rank, "WORLD_SIZE": self.ranks}
            env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            os.environ.update({name: str(value) for name, value in env.items()})
            where = (self.folder / f"where-{rank}.txt").open("w")
            faulthandler.register(signal.SIGXCPU, file=where, chain=True)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S + 5))
            # After a fork, the first call creates PyTorch's thread pool again, which aborts the
            # process if two threads do it at once: this one, and autograd's.
            torch.set_num_threads(1)
            if self._called:
                call(self.folder, self._called)
            else:
                train(self.folder, rank)
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)

    def is_active(self) -> bool:
        """Return whether a rank is active; end all ranks if one has failed or takes too long."""
        for rank, pid in [*self.pids.items()]:
            done, status = os.waitpid(pid, os.WNOHANG)
            if not done:
                continue
            del self.pids[rank]
            self._codes.add(os.waitstatus_to_exitcode(status))
            if status and not self._has_failed:
                self._has_failed = True
                grace_s = SAVING_S if GO_ON in self._codes else GRACE_S
                self._ends_s = min(self._ends_s, time.monotonic() + grace_s)
            if os.WIFSIGNALED(status) and self._is_unplanned(os.WTERMSIG(status)):
                name = signal.Signals(os.WTERMSIG(status)).name
                self._note_end(f"stopped after {CPU_S} s of computing, an endless loop?"
                               if name == "SIGXCPU" else name)  # fmt: skip
        is_idle = bool(self.pids) and self._is_idle()
        if self.pids and (is_idle or time.monotonic() > self._ends_s):
            self._stop()
            if not self._has_failed:
                self._note_end(
                    f"stopped, because it only waited for {IDLE_S:.0f} s, as for a lock, a queue, "
                    f"an input or other ranks" if is_idle else f"no end after {LIMIT_S:.0f} s"
                )  # fmt: skip
        is_open = self._attempts == 1 and not (self.folder / "record.json").exists()
        if not self.pids and is_open and (self.folder / INTERRUPTED).exists():
            # If one rank ends with GO_ON and another does not, they stopped in different steps.
            if self._codes == {GO_ON} or not (self._gets_sigterm or GO_ON in self._codes):
                self._has_failed = False
                self.start()
            elif GO_ON not in self._codes:
                self._note_end(
                    f"after SIGTERM its exit code is {min(self._codes)}, and only after {GO_ON} "
                    f"another process continues: on each rank the handler only notes the "
                    f"signal; save, call run.mark_interrupted() and return from main"
                )
        if not self.pids and not self._called:
            (self.folder / "files.json").write_text(
                json.dumps(to_values(describe_files(self.folder)))
            )
        return bool(self.pids)

    def _is_idle(self) -> bool:
        """Return whether the ranks and their workers have hardly computed for IDLE_S."""
        if (now := time.monotonic()) < self._looked_at + 1:
            return False
        self._looked_at, computed_s = now, 0.0
        for pid in self.pids.values():
            with contextlib.suppress(psutil.Error):
                rank = psutil.Process(pid)
                for process in (rank, *rank.children(recursive=True)):
                    with contextlib.suppress(psutil.Error):
                        computed_s += sum(process.cpu_times()[:4])
        if abs(computed_s - self._computed_s) > BUSY_S:  # less if a worker has ended
            self._computed_s, self._computed_at = computed_s, now
        return now > self._computed_at + IDLE_S

    def _stop(self) -> None:
        """End all ranks; unless one has failed, each first writes where it is."""
        if not self._has_failed:
            for pid in self.pids.values():
                os.kill(pid, signal.SIGXCPU)
            time.sleep(GRACE_S)
        for pid in self.pids.values():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            self._codes.add(-signal.SIGKILL)
        self.pids = {}

    def _note_end(self, cause: str) -> None:
        """Store why the run ended, and in which line of the script a rank was."""
        for path in sorted(self.folder.glob("where-*.txt")):
            # The innermost frame is the first.
            if place := re.search(r'File "train.py", line \d+', path.read_text()):
                cause += f" ({place[0].replace('File ', '').replace(chr(34), '')})"
                break
        (self.folder / "signal.txt").write_text(cause)

    def _is_unplanned(self, number: int) -> bool:
        """Return whether a signal is not one that the config requests."""
        return not ((self.folder / INTERRUPTED).exists() and number in (9, 15))


def train(folder: Path, rank: int) -> None:
    """Train a run's script on a rank."""
    os.environ[FOLDER_VARIABLE] = str(folder)
    observed, script = Observed(folder, rank), ModuleType("train")
    try:
        with recording() as run:
            if run.config.checkpointing:  # before scripts use the method
                before_call(tiny_networks.Block, "forward", observed.note_block)
            if run.config.gather_bf16:
                before_call(tiny_networks.Transformer, "forward", observed.note_autocast)
            if run.config.script == "train.py" and not run.config.compile:
                before_call(tiny_networks.Narrow, "forward", observed.note_images)
            if run.config.compile:
                observed.backend = tiny_networks.counting_backend(observed.note_layers)
            observed.start()
            exec(compile_script((folder / "train.py").read_text()), vars(script))
            script.main(run)
    finally:
        observed.write()


def describe_files(folder: Path) -> Files:
    """Describe what a run saved."""
    files = Files()
    if paths := sorted((folder / CHECKPOINTS).glob("[!.]*"), key=lambda path: path.stat().st_mtime):
        with contextlib.suppress(Exception):  # it is incomplete, which another fact reports
            saved, counts = torch.load(paths[-1], weights_only=False), Counter()
            for name, part in saved.items() if isinstance(saved, dict) else [("", saved)]:
                for digest in map(_digest, tree_leaves(part)):
                    counts[digest] += 1  # the step is also a number of the schedule's
                    times = f" ({counts[digest]} times)" * (counts[digest] > 1)
                    files.state[digest + times] = name
    if (path := folder / "weights.pt").exists():
        try:
            state = torch.load(path, weights_only=True, map_location="cpu")
            files.weights = {
                name: {
                    "shape": [*tensor.shape],
                    "type": str(tensor.dtype),
                    "sum": float(tensor.double().sum()),
                    "length": float(tensor.double().norm()),
                }
                for name, tensor in state.items()
            }
        except Exception:
            files.weights = "a file that torch.load cannot read alone, such as one rank's shards"
    if (path := folder / CHECKPOINT).exists():
        from torch.distributed.checkpoint import FileSystemReader

        parts = len({part.name.split("_")[2] for part in path.glob("*.distcp")})
        is_whole = (path / ".metadata").exists()
        entries = FileSystemReader(path).read_metadata().state_dict_metadata if is_whole else {}
        sizes = [[*size] for entry in entries.values() if (size := getattr(entry, "size", None))]
        shapes = Counter(f"number of tensors of {size}" for size in sizes)
        files.checkpoint = {"number of writers": parts, **shapes}
    return files


def _digest(leaf: Any) -> str:
    leaf = leaf.item() if isinstance(leaf, torch.Tensor) and not leaf.ndim else leaf
    if isinstance(leaf, torch.Tensor):
        return f"a tensor of {[*leaf.shape]} with the sum {float(leaf.double().sum()):.6g}"
    return f"the number {leaf:.6g}" if isinstance(leaf, int | float) else f"the text {leaf}"


def call(folder: Path, function: str) -> None:
    """Call a function, MODULE:NAME, with a script's text and config; write the list it returns."""
    module, name = function.split(":")
    run = Run(folder)
    check = getattr(importlib.import_module(module), name)
    problems = [*check(run.script.read_text(), run.requested_config)]
    (folder / "problems.json").write_text(json.dumps(problems))


def write_images(root: Path, *, with_shards: bool) -> None:
    """Write a set of random images, all different, unless it exists; optionally its shards."""
    random = np.random.default_rng(0)
    for split, count in () if root.exists() else (("train", TRAIN), ("val", VAL)):
        for label in range(CLASSES):
            (root / split / f"class{label}").mkdir(parents=True)
            for number in range(count):
                pixels = random.integers(0, 256, (SIDE // 8, SIDE // 8, 3), np.uint8)
                image = Image.fromarray(pixels).resize((SIDE, SIDE))
                image.save(root / split / f"class{label}" / f"{number}.jpg")
    if with_shards:
        convert.MIN_PART = 4
        convert.convert_set("shards", root)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
