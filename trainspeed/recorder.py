"""Record what a training process does in each iteration.

The probe (`trainspeed.probe`) reports what an unmodified script does; `Watch` what a loop does that
calls it. Most iterations are only timed. A few are traced with `torch.profiler`, and one is
observed: functions that wait for the accelerator are replaced, so that the user's line that calls
them is known. These few do not count for the times.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import statistics
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from trainspeed.lines import own_line
from trainspeed.sampler import StackSampler

WARM_UP, TIMED, TRACED, OBSERVED, REST = "warm-up", "timed", "traced", "observed", "rest"
# Methods of a tensor that wait until the accelerator has computed it.
WAITING = ("item", "tolist", "cpu", "numpy", "__bool__", "__float__", "__int__", "__index__")
WAITING += ("__format__", "__repr__", "nonzero")
AHEAD, AHEAD_S = 8, 0.25  # iterations, or seconds, by which a rank may be ahead of another
OBSERVED_S, OBSERVED_COUNT = 1.0, 3  # seconds for which the stack is sampled, and iterations


@dataclass(frozen=True)
class Plan:
    """How many iterations serve for what, and where the result goes."""

    folder: str
    warm_up: int = 3  # iterations
    timed: int = 10  # iterations, and seconds: both must have passed
    timed_s: float = 2.0
    most_s: float = 20.0  # after which fewer timed iterations are enough
    traced: int = 3  # iterations; 0: no trace
    turns: str = ""  # where to ask for turns (`trainspeed.turns`): then all is only timed
    trial: dict[str, Any] | None = None  # arguments of `trainspeed.changes.Trial`


@dataclass
class Iteration:
    """An iteration of training. Times are in seconds, on the host."""

    begin_s: float
    end_s: float = 0.0
    kind: str = WARM_UP
    wait_s: float = 0.0  # for batches
    backward_s: float = 0.0
    optimizer_s: float = 0.0
    batches: int = 0
    backwards: int = 0
    updates: int = 0
    samples: int = 0
    tokens: int = 0
    loops: int = 0  # how many loops over a DataLoader began


@dataclass
class Loader:
    """A DataLoader that was iterated."""

    line: str
    dataset: str
    length: int | None
    batch_size: int | None
    workers: int
    pin_memory: bool
    persistent_workers: bool
    prefetch_factor: int | None
    batches: int = 0
    wait_s: float = 0.0


@dataclass
class UsedOptimizer:
    """An optimizer that stepped."""

    kind: str
    line: str
    parameters: int
    implementation: str  # fused, foreach or default
    steps: int = 0


@dataclass
class Forward:
    """The outermost modules' calls in the observed iteration."""

    module: str
    line: str
    parameters: int
    inputs: list[str]
    autocast: str  # the dtype, "" without
    is_training: bool
    samples: int = 0  # of the input
    tokens: int = 0
    calls: float = 1  # per iteration


@dataclass
class Notes:
    """What was found out beside times."""

    loaders: list[Loader] = field(default_factory=list)
    optimizers: list[UsedOptimizer] = field(default_factory=list)
    forwards: list[Forward] = field(default_factory=list)
    waits: dict[str, float] = field(default_factory=dict)  # "function, line": calls per iteration
    blocked_s: float = 0.0  # in these calls, of an iteration
    stages: list[dict[str, Any]] = field(default_factory=list)  # of loading, in this process
    lines: dict[str, float] = field(default_factory=dict)  # shares of an iteration without loading
    memory: dict[str, float] = field(default_factory=dict)  # bytes
    has_own_profiler: bool = False
    is_compiled: bool = False


class Waits:
    """Calls that wait for the accelerator, in iterations that only train.

    Attributes:
        counts: the calls, by "function, line".
        blocked_s: of each iteration, the seconds in these calls.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.blocked_s: list[float] = []
        self._calls: Counter[str] = Counter()  # of the current iteration
        self._seconds, self._is_inside = 0.0, False

    def end(self, iteration: Iteration) -> None:
        """End an iteration. One that began a loop over a DataLoader may have evaluated."""
        if not iteration.loops:
            self.counts.update(self._calls)
            self.blocked_s.append(self._seconds)
        self._calls.clear()
        self._seconds = 0.0

    @contextmanager
    def counted(self, owner: Any, name: str) -> Iterator[None]:
        """Count and time the calls of a function that waits; a tensor's, on the accelerator."""
        original = getattr(owner, name)
        is_own = name in vars(owner)

        @functools.wraps(original)
        def wrapper(*args, **kwargs):
            is_waiting = owner is not torch.Tensor or args[0].device.type != "cpu"
            if self._is_inside or not is_waiting:  # some call each other
                return original(*args, **kwargs)
            if line := own_line(2):
                self._calls[f"{name}, {line}"] += 1
            self._is_inside, begin = True, now()
            try:
                return original(*args, **kwargs)
            finally:
                self._is_inside = False
                self._seconds += now() - begin

        setattr(owner, name, wrapper)
        try:
            yield
        finally:
            if is_own:
                setattr(owner, name, original)
            else:
                delattr(owner, name)


def now() -> float:
    """Return the host's clock, in seconds."""
    return time.perf_counter()


class Recorder:
    """What one process does, iteration by iteration; `mark` ends an iteration."""

    def __init__(self, plan: Plan, rule: str = "") -> None:
        self.plan, self.rule = plan, rule
        self.iterations: list[Iteration] = []
        self.notes = Notes()
        self.state = WARM_UP
        self._current: Iteration | None = None
        self._loaders: dict[int, Loader] = {}
        self._optimizers: dict[int, UsedOptimizer] = {}
        self._objects: list[Any] = []  # kept, so that no id is used again
        self._restarts = 0  # of counting, by another rule
        self._since = 0  # index of the state's first iteration
        self._profiler: Any = None
        self._trace = ""
        self._exits = contextlib.ExitStack()
        self._sampler: StackSampler | None = None
        self._waits = Waits()
        self.on_ready: Callable[[], None] = lambda: None
        self.on_iteration: Callable[[Iteration | None], None] = lambda iteration: None

    # What the loop did.

    def count_by(self, rule: str) -> None:
        """Count iterations by a rule from now on: what was measured by another one is dropped."""
        if self.rule and self.state != REST:
            if self._profiler is not None:
                self._stop_trace()
            if self.state == OBSERVED:
                self._stop_observing()
            self.iterations.clear()
            self._current, self._trace = None, ""
            self._restarts += 1
            self._enter(WARM_UP)
        self.rule = rule

    def mark(self) -> None:
        """End an iteration, and begin the next one."""
        at = now()
        if self._current is not None:
            self._current.end_s, self._current.kind = at, self.state
            self.iterations.append(self._current)
            if not self.plan.turns:
                self._advance()
        self.on_iteration(self._current)
        self._current = Iteration(now())

    def add_batch(self, loader: Any, begin_s: float, end_s: float, batch: Any) -> None:
        """Note that the loop waited for a batch."""
        if entry := self._loaders.get(id(loader)):  # and not any other iterable
            entry.batches += 1
            entry.wait_s += end_s - begin_s
        if it := self._current:
            samples, tokens = count_samples(batch)
            it.wait_s += end_s - begin_s
            it.batches += 1
            it.samples += samples
            it.tokens += tokens

    def add_loop(self, loader: Any, line: str) -> None:
        """Note that a loop over a DataLoader begins."""
        if id(loader) not in self._loaders:
            self._loaders[id(loader)] = _loader(loader, line)
            self._objects.append(loader)
            self.notes.loaders = [*self._loaders.values()]
        if self._current:
            self._current.loops += 1

    def add_backward(self, begin_s: float, end_s: float) -> None:
        """Note a backward pass."""
        if self._current:
            self._current.backward_s += end_s - begin_s
            self._current.backwards += 1

    def add_update(self, optimizer: torch.optim.Optimizer, seconds: float, line: str) -> None:
        """Note a step of an optimizer."""
        if id(optimizer) not in self._optimizers:
            self._optimizers[id(optimizer)] = _used_optimizer(optimizer, line)
            self._objects.append(optimizer)
            self.notes.optimizers = [*self._optimizers.values()]
        self._optimizers[id(optimizer)].steps += 1
        if self._current:
            self._current.optimizer_s += seconds
            self._current.updates += 1

    def add_profiler(self, profiler: Any) -> None:
        """Note that a profiler begins to record. If it is the script's, it has the way."""
        if profiler is not self._profiler:
            self.notes.has_own_profiler = True
            if own := self._profiler:
                self._profiler = None
                own.stop()
                self._enter(OBSERVED)

    @contextmanager
    def fetching(self) -> Iterator[None]:
        """Sample what this thread does in the block, if it is time to."""
        if self._sampler is None:
            yield
            return
        self._sampler.is_on = True
        try:
            yield
        finally:
            self._sampler.is_on = False

    # From state to state.

    def _advance(self) -> None:
        count = len(self.iterations) - self._since
        seconds = self.iterations[-1].end_s - self.iterations[self._since].begin_s
        plan = self.plan
        if self.state == WARM_UP and count >= plan.warm_up:
            self._enter(TIMED)
        elif self.state == TIMED:
            is_enough = count >= plan.timed and seconds >= plan.timed_s
            is_enough |= count >= 3 and seconds >= plan.most_s
            if self._is_last_timed(count, seconds / count, is_enough):
                self._enter(TRACED if plan.traced and self._start_trace() else OBSERVED)
        elif self.state == TRACED:
            if count >= plan.traced:
                self._stop_trace()
                self._enter(OBSERVED)
            else:
                self._profiler.step()
        elif self.state == OBSERVED:
            self._waits.end(self.iterations[-1])
            is_enough = count >= OBSERVED_COUNT and seconds >= OBSERVED_S
            if is_enough or seconds >= plan.most_s:
                self._stop_observing()
                self._enter(REST)
                self.write()

    def _is_last_timed(self, count: int, iteration_s: float, is_enough: bool) -> bool:
        """Return whether the next state follows, which ranks must enter after the same iteration.

        Their clocks differ, so the first one that has enough chooses it, ahead of all of them.
        """
        if int(os.environ.get("WORLD_SIZE", 1)) == 1:
            return is_enough
        # A link with its target is created at once, or not at all if another rank was first.
        name = f"timed-{os.environ.get('MASTER_PORT', '')}-{self._restarts}"
        path = Path(self.plan.folder, name)
        with contextlib.suppress(OSError):
            if is_enough:
                os.symlink(str(count + 1 + min(AHEAD, int(AHEAD_S / iteration_s))), path)
        try:
            return count >= int(os.readlink(path))
        except OSError:  # not chosen yet, or a file system without links
            return is_enough

    def _enter(self, state: str) -> None:
        self.state, self._since = state, len(self.iterations)
        if state == OBSERVED:
            self._observe()

    def _start_trace(self) -> bool:
        if self.notes.has_own_profiler:
            return False
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or it prints lines about itself
        _unload_tracing_afterwards()
        warnings.filterwarnings("ignore", ".*Profiler clears events")
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        try:
            self._profiler = torch.profiler.profile(
                activities=activities, record_shapes=True, schedule=_record
            )
            self._profiler.start()
        except RuntimeError:  # another profiler is at work
            self._profiler = None
        return self._profiler is not None

    def _stop_trace(self) -> None:
        name = f"trace-{os.getpid()}.json.gz"
        profiler, self._profiler = self._profiler, None
        try:
            profiler.stop()
            profiler.export_chrome_trace(str(Path(self.plan.folder, name)))
            self._trace = name
        except (RuntimeError, OSError) as error:
            print(f"trainspeed: no trace ({error})", file=sys.stderr)

    def _observe(self) -> None:
        forwards: dict[tuple[str, str], Forward] = {}
        self._waits = Waits()
        exits = self._exits = contextlib.ExitStack()
        if device_type() != "cpu":
            for name in WAITING:
                exits.enter_context(self._waits.counted(torch.Tensor, name))
            exits.enter_context(self._waits.counted(torch.cuda, "synchronize"))
        exits.enter_context(self._watch_forward(forwards))
        self._sampler = StackSampler(threading.get_ident())
        self._sampler.start()
        # What libraries do at the end of the process, such as PyTorch's summary, is no line of it.
        atexit.register(setattr, self._sampler, "is_over", True)

    def _stop_observing(self) -> None:
        self._exits.close()
        count = max(1, len(self.iterations) - self._since)
        if times := self._waits.blocked_s:
            self.notes.waits = {k: n / len(times) for k, n in self._waits.counts.most_common()}
            self.notes.blocked_s = statistics.median(times)
        for forward in self.notes.forwards:
            forward.calls /= count
        if self._sampler:
            self._sampler.is_over = True
            self.notes.stages = self._sampler.rows()
            total = self._sampler.lines.total()
            self.notes.lines = {n: c / total for n, c in self._sampler.lines.most_common(8)}
            self._sampler = None

    @contextmanager
    def _watch_forward(self, forwards: dict[tuple[str, str], Forward]) -> Iterator[None]:
        depth = 0

        def enter(module: torch.nn.Module, args: Any) -> None:
            nonlocal depth
            depth += 1
            if depth == 1 and module.training:
                key = (type(module).__name__, own_line(2))
                if key in forwards:
                    forwards[key].calls += 1
                elif len(forwards) < 20:
                    forwards[key] = _forward(module, args, key[1])
                    self.notes.is_compiled |= is_compiled(module)
                self.notes.forwards = [*forwards.values()]

        def leave(module: torch.nn.Module, args: Any, output: Any) -> None:
            nonlocal depth
            depth -= 1

        modules = torch.nn.modules.module
        before = modules.register_module_forward_pre_hook(enter)
        after = modules.register_module_forward_hook(leave, always_call=True)
        try:
            yield
        finally:
            before.remove()
            after.remove()

    # The result.

    def finish(self) -> None:
        """Write what is known when the process ends."""
        if self._profiler is not None:
            self._stop_trace()
            if self.state == TRACED and len(self.iterations) == self._since:
                self._trace = ""  # of no iteration to its end
        if self.state == OBSERVED:
            self._stop_observing()
        if self.iterations or self._current or self._loaders:
            self.write()

    def write(self) -> None:
        """Write the result; atomically, because the page may be made at any time."""
        path = Path(self.plan.folder, f"process-{os.getpid()}.json")
        self.notes.memory = memory_of([o for o in self._objects if hasattr(o, "param_groups")])
        part = path.with_suffix(".part")
        with contextlib.suppress(OSError):  # a full disk is no reason to end the training
            part.write_text(json.dumps(self.to_dict()))
            os.replace(part, path)
        self.on_ready()

    def to_dict(self) -> dict[str, Any]:
        """Return everything as values that JSON has."""
        return {
            "process": os.getpid(),
            "command": sys.argv,
            "rule": self.rule,
            "state": self.state,
            "rank": int(os.environ.get("RANK", 0)),
            "world_size": int(os.environ.get("WORLD_SIZE", 1)),
            "trace": self._trace,
            "machine": machine(),
            "iterations": [asdict(iteration) for iteration in self.iterations],
            **asdict(self.notes),
        }


def _unload_tracing_afterwards() -> None:
    """Let the profiler unload NVIDIA's tracing library, which would slow every later launch.

    Before CUDA 12.6 this crashed with CUDA graphs.
    """
    version = (torch.version.cuda or "0.0").split(".")
    if [*map(int, version[:2])] >= [12, 6]:
        os.environ.setdefault("TEARDOWN_CUPTI", "1")


def _record(step: int) -> torch.profiler.ProfilerAction:
    return torch.profiler.ProfilerAction.RECORD  # with a schedule, each iteration is a range


def device_type() -> str:
    """Return the accelerator's type, if this process has used one, else "cpu"."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return "cuda"
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return accelerator.type if accelerator and accelerator.type != "cuda" else "cpu"


def machine() -> dict[str, Any]:
    """Return what the times depend on: device, cores, threads, versions and settings."""
    from trainspeed.resources import core_count

    device = device_type()
    name = torch.cuda.get_device_name() if device == "cuda" else device
    return {
        "device": device,
        "device_name": name,
        "device_bytes": torch.cuda.mem_get_info()[1] if device == "cuda" else 0,
        "cores": core_count(),
        "threads": torch.get_num_threads(),
        "load_per_core": os.getloadavg()[0] / os.cpu_count() if hasattr(os, "getloadavg") else 0.0,
        "torch": torch.__version__,
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "cudnn_tf32": bool(torch.backends.cudnn.allow_tf32) if device == "cuda" else False,
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


def is_compiled(module: torch.nn.Module) -> bool:
    """Return whether torch.compile was applied to a module or to one inside it."""
    kind = type(module).__name__
    return kind == "OptimizedModule" or any(
        type(child).__name__ == "OptimizedModule" for child in module.modules()
    )


def count_samples(batch: Any) -> tuple[int, int]:
    """Return the samples and the tokens of a batch: tokens if its first tensor is of integers."""
    tensor = first_tensor(batch)
    if tensor is None or not tensor.dim():
        return 0, 0
    is_text = tensor.dim() == 2 and not tensor.is_floating_point()
    return tensor.shape[0], tensor.numel() if is_text else 0


def first_tensor(value: Any, depth: int = 4) -> torch.Tensor | None:
    """Return the first tensor in nested lists, tuples and dicts."""
    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, dict):
        value = [*value.values()]
    if depth and isinstance(value, (list, tuple)):
        parts = (first_tensor(part, depth - 1) for part in value)
        return next((part for part in parts if part is not None), None)
    return None


def memory_of(optimizers: list[Any]) -> dict[str, float]:
    """Return bytes of parameters, gradients and optimizer states, and the device's peak."""
    parameters = {p for o in optimizers for group in o.param_groups for p in group["params"]}
    states = [v for o in optimizers for state in o.state.values() for v in _values(state)]
    sizes = {
        "parameters": sum(p.nbytes for p in parameters),
        "gradients": sum(p.grad.nbytes for p in parameters if p.grad is not None)
        or sum(p.nbytes for p in parameters if p.requires_grad),
        "optimizer": sum(v.nbytes for v in states if isinstance(v, torch.Tensor)),
    }
    if device_type() == "cuda":
        sizes["peak"] = torch.cuda.max_memory_allocated()
        sizes["reserved"] = torch.cuda.max_memory_reserved()
    return sizes


def _values(state: Any) -> list[Any]:
    return [*state.values()] if isinstance(state, dict) else []


def _loader(loader: Any, line: str) -> Loader:
    try:
        length = len(loader.dataset)
    except (TypeError, AttributeError, NotImplementedError):
        length = None
    return Loader(
        line=line,
        dataset=type(loader.dataset).__name__,
        length=length,
        batch_size=loader.batch_size,
        workers=loader.num_workers,
        pin_memory=loader.pin_memory,
        persistent_workers=loader.persistent_workers,
        prefetch_factor=loader.prefetch_factor,
    )


def _used_optimizer(optimizer: torch.optim.Optimizer, line: str) -> UsedOptimizer:
    groups = optimizer.param_groups
    flags = [name for name in ("fused", "foreach") if groups[0].get(name)]
    return UsedOptimizer(
        kind=type(optimizer).__name__,
        line=line,
        parameters=sum(p.numel() for group in groups for p in group["params"]),
        implementation=flags[0] if flags else "default",
    )


def _forward(module: torch.nn.Module, args: Any, line: str) -> Forward:
    tensors = [value for value in args if isinstance(value, torch.Tensor)]
    device = tensors[0].device.type if tensors else "cpu"
    is_half = torch.is_autocast_enabled(device)
    samples, tokens = count_samples(tensors)
    return Forward(
        module=type(module).__name__,
        line=line,
        parameters=sum(parameter.numel() for parameter in module.parameters()),
        inputs=[_describe_tensor(tensor) for tensor in tensors],
        autocast=str(torch.get_autocast_dtype(device)).removeprefix("torch.") if is_half else "",
        is_training=module.training,
        samples=samples,
        tokens=tokens,
    )


def _describe_tensor(tensor: torch.Tensor) -> str:
    shape, kind = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
    is_last = tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    is_last = is_last and not tensor.is_contiguous()
    return f"{kind} {shape}{' channels_last' if is_last else ''}"
