"""Explain errors whose messages leave out the cause: name the cause, and what to do.

PyTorch reports only the last symptom of a dead worker, a full /dev/shm or a lost rank. Such
messages are recognised by their text.
"""

from __future__ import annotations

import re
import shutil
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course.config import GIB
from course.runs.files import PROJECT
from course.text import TEXT, printable, shortened

SHARED = "/dev/shm"  # DataLoader workers pass their batches through it
SHARED_LOW = 64 * 1024**2  # bytes: with less, "no space left on device" refers to it
PATIENCE_S = 120  # a batch that takes longer will not arrive
_ADVICE = {
    "oom": "It needs more memory than is available: lower batch_size, or the size of an image or "
    "a sequence. If Slurm ended it, request more memory for the host, as with mem-per-gpu in your "
    "site's entry.",
    "timeout": "Give it more time (time_min=…) or fewer steps.",
    "cancelled": "Launch it again if you still need it.",
    "lost": "If memory ran out, lower batch_size; otherwise, launch it again.",
}
_NOT_THE_SCRIPT = {
    "disk": "This is not the script's fault: free some disk space, and launch it again.",
    "data": "The cause is the data, not the script: follow the message, and launch it again.",
    "machine": "This is not the script's fault: follow the message, and launch it again.",
    "environment": "The environment may be the cause: follow the message, and launch it again.",
    "rank": "Another rank ended first: look for its error, and launch it again.",
}
_LIGHTER = "fewer workers or a smaller prefetch_factor"
_IN_WORKER = re.compile(r"Caught \w+ in DataLoader worker process (\d+)\.\n")
_WORKER_ENDED = r"DataLoader worker \(pid.*(killed by signal|exited unexpectedly)"
_WATCHDOG = "Watchdog caught"  # begins NCCL's message about a collective that takes too long
_HANG = re.compile(rf"{_WATCHDOG} .+?(?= before timing out|\.?$)", re.MULTILINE)
_STACK = re.compile(r"Stack trace of the failed collective: *\n((?:#\d+ .*\n?)+)")


def advice(error: BaseException | str) -> str:
    """Return the cause and the fix in a sentence or two; "" for an error of any other kind.

    Args:
        error: an exception, or the text of a log.
    """
    if isinstance(error, ConnectionError | EOFError):
        frames = traceback.extract_tb(error.__traceback__)
        if any(frame.filename.endswith("utils/data/dataloader.py") for frame in frames):
            return _WORKER_DIED  # while a batch was received from it
    if isinstance(error, str):
        text = error
    else:  # with its causes
        texts, cause = [], error
        while cause is not None and len(texts) < 10:
            texts.append(f"{type(cause).__name__}: {cause}")
            cause = cause.__cause__ or cause.__context__
        text = "\n".join(texts)
    for pattern, explanation in _EXPLANATIONS:
        if re.search(pattern, text):
            return explanation() if callable(explanation) else explanation
    return ""


def is_echo(text: str) -> bool:
    """Return whether the error only reports that a different rank has ended."""
    return advice(text) == _LEFT


def ended_early(where: str, *, is_exit: bool) -> str:
    """Return the error of a script that ended without an exception before its last step.

    Args:
        where: such as "in step 3 of 64".
        is_exit: its process ended, instead of the loop over the steps.
    """
    return f"the script ended {where}{' (exit code 0)' * is_exit}: {_EARLY}"


def is_early_end(text: str) -> bool:
    """Return whether this is an error of `ended_early`."""
    return _EARLY in text


def summarize(error: BaseException) -> str:
    """Return the error, the line of the script, and the advice in one line, for the record."""
    text, kind, explanation = str(error).strip(), type(error).__name__, advice(error)
    if in_worker := _IN_WORKER.match(text):  # the text is the worker's complete traceback
        lines = text.splitlines()
        starts = [i for i, line in enumerate(lines) if re.match(rf"[\w.]*{kind}\b", line)]
        last = " ".join(lines[starts[-1] :]) if starts else lines[-1]
        last = re.sub(r"^[\w.]*\.(?=\w+:)", "", last)  # without the module's name
        text, kind = f"{last} (in DataLoader worker {in_worker[1]})", ""
    if explanation == _DISK and (lines := re.findall(rf".*(?:{_NO_SPACE}).*", text)):
        text = lines[-1].strip()  # the error of a checkpoint has the tracebacks of all ranks
    summary = f"{kind}: {text}" if kind else text
    frames = [(f.filename, f.lineno) for f in traceback.extract_tb(error.__traceback__)]
    place = (in_worker and place_in(str(error))) or _last_place(frames)
    # A worker's death interrupts any line of the script, and a full disk is not its fault.
    if place and fault_of(f"{summary}. {explanation}") in ("", "environment"):
        summary += f" {place}"
    if explanation:
        summary = f"{summary}. {explanation}".replace(".. ", ". ")
    return shortened(printable(summary), TEXT)


def fault_of(text: str) -> str:
    """Return the source of an error: "disk", "data", "machine", "rank", "environment", or "".

    "rank" is a different rank, and "environment" the installed packages. "" is anything else, such
    as a script: `blamed_file` returns the file whose line failed.
    """
    explanation = advice(text)
    if _DISK in text or (explanation == _DISK and "shared memory" not in text):
        return "disk"
    if re.search(r"\bDataError: ", text):
        return "data"
    if explanation in (_LEFT, _MODULE):
        return "rank" if explanation == _LEFT else "environment"
    is_known = explanation and explanation not in (_WAITED, _TOO_FEW_GPUS)
    return "machine" if is_known or any(words in text for words in NOT_THE_SCRIPT) else ""


def what_to_do(status: str, error: str, source: str) -> str:
    """Return what to do about a run that is not ok.

    Args:
        source: the script that was launched, with its folder.
    """
    if status in _ADVICE:
        is_gpu = "out of memory. Tried" in error  # Slurm has no part in its memory
        return _ADVICE[status].partition(" If Slurm")[0] if is_gpu else _ADVICE[status]
    if fault := fault_of(error):
        return _NOT_THE_SCRIPT[fault]
    name = blamed_file(error)
    if name == "train.py":
        return f"Fix the cause in {source} (the run used a copy of it), and launch it again."
    if name:
        return f"Fix the cause in {name}, and launch it again."
    if is_early_end(error):
        return f"See where {source} ends (the run used a copy of it), and launch it again."
    return f"The error names no line of {source}: the logs show more. Then launch it again."


def blamed_file(text: str) -> str:
    """Return the file whose line an error names as the last one outside libraries; "" if none."""
    if named := re.findall(r"\(([\w.-]+\.py), line \d+\)", text):
        return named[-1]
    return place_in(text).strip("(").partition(",")[0]


def place_in(log: str) -> str:
    """Return the last place outside libraries in a printed traceback, as "(train.py, line 3)"."""
    return _last_place(re.findall(r'^\s*File "([^"\n]+)", line (\d+)', log, re.MULTILINE))


def _last_place(frames: Iterable[tuple[str, Any]]) -> str:
    ours = [(name, line) for name, line in frames if not _is_library(name)]
    return f"({Path(ours[-1][0]).name}, line {ours[-1][1]})" if ours else ""


def _is_library(path: str) -> bool:
    """Return whether a file belongs to Python, a package, or the course's own packages."""
    if re.search(r"^<|/(site|dist)-packages/|/lib/python3\.\d+/|/torchinductor_", path):
        return True
    if not Path(path).is_relative_to(PROJECT):
        return False
    return (PROJECT / Path(path).relative_to(PROJECT).parts[0] / "__init__.py").exists()


@dataclass(frozen=True)
class Hang:
    """The collective during which NCCL's watchdog ended a rank, from the rank's log.

    The watchdog is a thread outside Python that ends the process, so the script gets no exception
    and cannot record anything.
    """

    rank: int
    message: str  # the watchdog's sentence, without its stack frames
    location: str  # "train.py, line 122"; "" if the log has no stack trace

    def __str__(self) -> str:
        location = f" ({self.location})" if self.location else ""
        return f"rank {self.rank}: {self.message}{location}. {advice(self.message)}"

    @property
    def collective(self) -> str:
        """The collective, its number on this rank, and the line of the script."""
        values = dict(re.findall(r"(SeqNum|OpType|NumelIn)=(\w+)", self.message))
        count = values.get("NumelIn", "")
        size = f" of {count} number{'s'[: count != '1']}" if count else ""
        number = f"its collective {values['SeqNum']}" if "SeqNum" in values else ""
        details = "; ".join(filter(None, (number, self.location)))
        details = f" ({details})" if details else ""
        return f"{values.get('OpType', 'a collective')}{size}{details}"


def hang(log: str, rank: int) -> Hang | None:
    """Return the hang that a rank's log reports, if any."""
    if not (message := _HANG.search(log)):
        return None
    stack = _STACK.search(log, message.end())
    line = re.search(r"[/ ]train\.py:(\d+)$", stack[1], re.MULTILINE) if stack else None
    return Hang(rank, message[0], f"train.py, line {line[1]}" if line else "")


def describe_hangs(rank: int, hangs: dict[int, Hang]) -> str:
    """Describe a rank's hang, and in which collective each rank waited.

    Args:
        rank: the rank to begin with, if it hung.
        hangs: by rank, at least one.
    """
    first = str(hangs.get(rank) or next(iter(hangs.values())))
    if len(hangs) == 1:
        return first
    places = ", ".join(f"rank {hang.rank} in {hang.collective}" for hang in hangs.values())
    return f"{first}. Where they waited: {places}"


def set_worker_timeout(batches: Any) -> None:
    """Let a DataLoader with workers raise an error after PATIENCE_S without a batch.

    A worker that cannot pass on a batch drops it and continues, and PyTorch would wait for this
    batch forever. A timeout set by the script is not changed.
    """
    if getattr(batches, "num_workers", 0) and not batches.timeout:
        batches.timeout = PATIENCE_S


def _shared_full() -> str:
    try:
        gib = shutil.disk_usage(SHARED).total / GIB
        size = f" ({gib:.2g} GiB)" if gib < 10 else f" ({gib:,.0f} GiB)"
    except OSError:
        size = ""
    return (
        f"Workers pass their batches through shared memory, and {SHARED}{size} is full. Use "
        f"{_LIGHTER}; you can give a container more (docker run --shm-size=8g)"
    )


def _disk_full() -> str:
    try:
        is_shared = shutil.disk_usage(SHARED).free < SHARED_LOW
    except OSError:
        is_shared = False
    return _shared_full() if is_shared else _DISK


_WORKER_DIED = (
    f"A worker was ended from outside, usually because the machine, the job or the container ran "
    f"out of memory, which every worker needs (the record's host_gib is the total). Use "
    f"{_LIGHTER}, or request more memory"
)
_EARLY = (
    "a run is ok only after all steps and epochs of its config. For a shorter run, set steps or "
    "epochs"
)
FORK_SERVER = (
    "the process from which scripts are started was killed (often: the system ran out of memory)"
)
TURNS_ENDED = "the process that controls the turns ended"
UNWRITABLE = "the run's folder cannot be written"
NOT_THE_SCRIPT = (FORK_SERVER, TURNS_ENDED, UNWRITABLE)
_COMPILER = (
    "torch.compile and Triton need a C++ compiler, and this machine has none that works: install "
    "one (g++, on a cluster often a module), or use a config with compile=''"
)
_DRIVER = (
    "The GPU, its driver, or what connects GPUs does not work with this PyTorch: nvidia-smi and "
    "`course doctor` show more; on a cluster, try another node"
)
_LIBRARY = (
    "A library is missing in the environment, or has another version than expected: `make setup` "
    "installs the course's, and `module list` shows what is loaded"
)
_MODULE = (
    "Python finds no module of this name: check the spelling, or install it into this environment"
)
_FILES = "The disk or its network does not work: launch it again later, or tell its administrator"
_WORKER_ASKED = (
    "A worker got a signal to end, which Slurm sends to all processes of a job that is cancelled, "
    "preempted or at its time limit. The workers of course.data.loader.loaders ignore it; in a "
    "DataLoader of your own, let worker_init_fn call signal.signal(signal.SIGTERM, signal.SIG_IGN) "
    "and kill the workers when the script ends"
)
_DISK = "A disk is full, or your quota is used up: free some space for data and runs"
# The system's messages, and PyTorch's file writer's version of them.
_NO_SPACE = (
    r"No space left on device|Disk quota exceeded|File too large"
    r"|inline_container\.cc.*unexpected pos|PytorchStreamWriter failed writing|iostream error"
)
_MEMORY = f"If the run has workers, each needs its own memory: use {_LIGHTER}"
_SLOW = (
    f"A worker was too slow, or could not hand its batch over (the log has its error): check the "
    f"disk of the files and the free space in {SHARED}. If the file system is slow, set "
    f"DataLoader(timeout=…) above {PATIENCE_S} s"
)
_OPEN_FILES = (
    f"Every batch in transit is an open file: use {_LIGHTER}, or raise the limit (ulimit -n)"
)
_LEFT = (
    "A different rank ended, and this one only noticed it: look for that rank's error in the logs "
    "and in rank-N.json"
)
_WAITED = (
    "This rank waited for another that did not come: it skipped a collective (an all_reduce or a "
    "backward under an `if`), did fewer steps, or failed, or the network between their nodes is "
    "down. rank_table(run), of course.runs, shows the steps and the error of each rank; "
    "collective_timeout_s is how long they wait"
)
_TOO_FEW_GPUS = "There are more ranks on this machine than GPUs: launch with fewer gpus, or on CPU"
# The first match counts, so certain causes come before likely ones.
_EXPLANATIONS: tuple[tuple[str, str | Callable[[], str]], ...] = (
    (r"killed by signal: Bus error|</torch_\d+_.*(No space left|Cannot allocate)", _shared_full),
    (r"unable to (write to file|allocate shared memory)", _shared_full),
    (_NO_SPACE, _disk_full),
    (r"[Tt]oo many open files|received \d+ items of ancdata", _OPEN_FILES),
    (r"killed by signal: (Terminated|User defined signal|Hangup)", _WORKER_ASKED),
    (_WORKER_ENDED, _WORKER_DIED),
    (r"DataLoader timed out after", _SLOW),
    (r"Connection closed by peer|[Cc]onnection reset by peer|Broken pipe|recvBytes failed", _LEFT),
    (
        r"Timed out waiting|timed out after|Socket Timeout|[Ww]ait timeout after|"
        rf"Application timeout|{_WATCHDOG}|clients joined",
        _WAITED,
    ),
    (r"Caught MemoryError in DataLoader|in DataLoader worker[\s\S]*can't allocate", _MEMORY),
    (r"OSError: \[Errno 12\]", _MEMORY),
    (r"No working C\+\+ compiler|[Ff]ailed to find C compiler|working triton install", _COMPILER),
    (r"fatal error: [\w./]+\.h: No such file", _COMPILER),
    (
        r"no NVIDIA driver|driver version is insufficient|no kernel image is available|CUDA unknown"
        r"|uncorrectable ECC|is/are busy or unavailable|no CUDA-capable device|GPU is lost"
        r"|Driver/library version mismatch|ncclSystemError|unhandled system error",
        _DRIVER,
    ),
    (r"cannot open shared object file|undefined symbol: |version [`']\S+' not found", _LIBRARY),
    (r"ModuleNotFoundError: ", _MODULE),
    (r"\[Errno (5|30|107|116|121)\]", _FILES),  # input/output error, read-only, stale, remote
    (r"invalid device ordinal", _TOO_FEW_GPUS),
)
