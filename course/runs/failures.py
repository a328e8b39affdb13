"""What an error means, where its own words do not say: the cause, and what to do about it.

PyTorch reports a worker's death, a full /dev/shm or a rank that left by what it noticed last.
Here such messages are known by their text, and get the sentence that was missing.
"""

from __future__ import annotations

import os
import re
import shutil
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from course.config import GIB
from course.text import TEXT, printable, shortened

SHARED = "/dev/shm"  # through which DataLoader workers hand over their batches
SHARED_LOW = 64 * 1024**2  # bytes: with so few left there, "no space left on device" means it
PATIENCE_S = 120  # a batch that takes longer will not come
LIGHTER = "fewer workers or a smaller prefetch_factor"
_IN_WORKER = re.compile(r"Caught \w+ in DataLoader worker process (\d+)\.\n")
_WATCHDOG = "Watchdog caught"  # how NCCL's begins, when a collective takes too long
_HANG = re.compile(rf"{_WATCHDOG} .+?(?= before timing out|\.?$)", re.MULTILINE)
_STACK = re.compile(r"Stack trace of the failed collective: *\n((?:#\d+ .*\n?)+)")
_ENDED = r"DataLoader worker \(pid.*(killed by signal|exited unexpectedly)"


def advice(error: BaseException | str) -> str:
    """The cause and the fix, in a sentence or two; "" for an error that is none of these.

    Args:
        error: what was raised, or the text of a log.
    """
    if isinstance(error, ConnectionError | EOFError) and _is_of_loader(error):
        return _worker_died()  # while a batch was fetched from it
    text = _whole(error)
    for pattern, told in _KNOWN:
        if re.search(pattern, text):
            return told() if callable(told) else told
    return ""


def is_echo(text: str) -> bool:
    """Does the error say no more than that another rank is gone?"""
    return advice(text) == _LEFT


def in_one_line(error: BaseException) -> str:
    """The error, where the script was, and the advice: what a record keeps of it."""
    text, kind, told = str(error).strip(), type(error).__name__, advice(error)
    if found := _IN_WORKER.match(text):  # PyTorch gives the worker's whole traceback
        text = f"{_last_error(text, kind)} (in DataLoader worker {found[1]})"
        kind = ""
    if told == _DISK and (lines := re.findall(rf".*(?:{_NO_ROOM}).*", text)):
        text = lines[-1].strip()  # a checkpoint's error holds the tracebacks of all ranks
    said = f"{kind}: {text}" if kind else text
    frames = traceback.extract_tb(error.__traceback__)
    script = [frame for frame in frames if frame.filename.endswith("train.py")]
    # The news of a worker's death interrupts any line: none of the script's is to blame.
    if script and not re.search(_ENDED, text) and not fault_of(f"{said}. {told}"):
        said += f" (train.py, line {script[-1].lineno})"
    said = f"{said}. {told}".replace(".. ", ". ") if told else said
    return shortened(printable(said), TEXT)


def fault_of(text: str) -> str:
    """What an error's text blames: "disk", "data", or "" for anything else, such as a script."""
    if _DISK in text or (advice(text) == _DISK and "shared memory" not in text):
        return "disk"
    return "data" if re.search(r"\bDataError: ", text) else ""


@dataclass(frozen=True)
class Hang:
    """The collective in which NCCL's watchdog ended a rank: what the rank's log says of it.

    The watchdog is a thread outside Python and ends the whole process: the script gets no
    exception, and can leave no word of its own.
    """

    rank: int
    said: str  # the watchdog's sentence, without the frames of its own code
    where: str  # "train.py, line 122"; "" where the log has no stack trace

    def __str__(self) -> str:
        where = f" ({self.where})" if self.where else ""
        return f"rank {self.rank}: {self.said}{where}. {advice(self.said)}"

    @property
    def collective(self) -> str:
        """Which it was, and where the script made it; the number counts them on each rank."""
        known = dict(re.findall(r"(SeqNum|OpType|NumelIn)=(\w+)", self.said))
        numbers = known.get("NumelIn", "")
        size = f" of {numbers} number{'s'[: numbers != '1']}" if numbers else ""
        number = f"its collective {known['SeqNum']}" if "SeqNum" in known else ""
        details = "; ".join(filter(None, (number, self.where)))
        return f"{known.get('OpType', 'a collective')}{size}" + (f" ({details})" if details else "")


def hang(log: str, rank: int) -> Hang | None:
    """Where NCCL's watchdog ended a rank, as that rank's own log tells; None: it did not."""
    if not (found := _HANG.search(log)):
        return None
    stack = _STACK.search(log, found.end())
    line = re.search(r"[/ ]train\.py:(\d+)$", stack[1], re.MULTILINE) if stack else None
    return Hang(rank, found[0], f"train.py, line {line[1]}" if line else "")


def in_the_words_of(rank: int, hangs: dict[int, Hang]) -> str:
    """A rank's hang, then in which collective each waited: one made what another did not.

    Args:
        rank: the one that tells; another does where it did not hang.
        hangs: by rank, at least one.
    """
    first = str(hangs.get(rank) or next(iter(hangs.values())))
    if len(hangs) == 1:
        return first
    each = [f"rank {hang.rank} in {hang.collective}" for hang in hangs.values()]
    return f"{first}. Where they waited: {', '.join(each)}"


def give_up_in_time(batches: Any) -> None:
    """Let a DataLoader with workers raise an error after PATIENCE_S without a batch.

    A worker that could not hand over what it had made drops it and lives on, and PyTorch would
    wait for that batch for ever. A timeout that the script has set itself is left alone.
    """
    if getattr(batches, "num_workers", 0) and not batches.timeout:
        batches.timeout = PATIENCE_S


def _whole(error: BaseException | str) -> str:
    """The text of an error, with those that it came from."""
    if isinstance(error, str):
        return error
    texts, each = [], error
    while each is not None and len(texts) < 10:
        texts.append(f"{type(each).__name__}: {each}")
        each = each.__cause__ or each.__context__
    return "\n".join(texts)


def _is_of_loader(error: BaseException) -> bool:
    frames = traceback.extract_tb(error.__traceback__)
    return any(frame.filename.endswith("utils/data/dataloader.py") for frame in frames)


def _last_error(text: str, kind: str) -> str:
    """The last line of a worker's traceback that names an error, and what follows it."""
    lines = text.splitlines()
    named = [i for i, line in enumerate(lines) if re.match(rf"[\w.]*{kind}\b", line)]
    said = " ".join(lines[named[-1] :]) if named else lines[-1]
    return re.sub(r"^[\w.]*\.(?=\w+:)", "", said)  # without the module's name


def oom_kills() -> int | None:
    """Processes that the kernel ended for lack of memory since it started; None: unknown.

    Linux counts them in /proc/vmstat, those of a container's or a job's own limit too.
    """
    try:
        with open("/proc/vmstat") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("oom_kill "))
    except (OSError, StopIteration):
        return None


def _count_kills() -> None:
    """Note how many there were before this process; a fork is another process."""
    global _kills_before
    _kills_before = oom_kills()


_kills_before: int | None = None
_count_kills()
os.register_at_fork(after_in_child=_count_kills)


def _worker_died() -> str:
    now = oom_kills()
    if now is not None and _kills_before is not None and now > _kills_before:
        return (
            f"The system ran out of memory and ended a process: every worker needs its own "
            f"(host_gib in the record tells how much all took). Take {LIGHTER}, or ask the "
            f"scheduler for more memory"
        )
    return (
        f"A worker was ended from outside. If nobody did it by hand, it was the scheduler or "
        f"the container, for lack of memory: take {LIGHTER}"
    )


def _shared_full() -> str:
    try:
        size = f" ({shutil.disk_usage(SHARED).total / GIB:.2g} GiB)"
    except OSError:
        size = ""
    return (
        f"Workers hand their batches over through shared memory, and {SHARED}{size} is full. "
        f"Take {LIGHTER}; a container can be given more (docker run --shm-size=8g)"
    )


def _disk_full() -> str:
    try:
        shared = shutil.disk_usage(SHARED).free < SHARED_LOW
    except OSError:
        shared = False
    return _shared_full() if shared else _DISK


_DISK = "A disk is full, or your quota is used up: make room where data and runs are"
# What the system says; then what PyTorch's writer of files makes of that.
_NO_ROOM = (
    r"No space left on device|Disk quota exceeded|File too large"
    r"|inline_container\.cc.*unexpected pos|PytorchStreamWriter failed writing|iostream error"
)
_MEMORY = f"If the run has workers, each needs memory of its own: take {LIGHTER}"
_STUCK = (
    f"A worker was too slow, or could not hand its batch over (its own error stands in the log): "
    f"look at the disk that the files come from and at the room in {SHARED}; a file system that "
    f"is slow by nature needs a DataLoader(timeout=…) above {PATIENCE_S} s"
)
_FILES = (
    "Every batch on its way holds an open file: take fewer workers or a smaller prefetch_factor, "
    "or raise the limit (ulimit -n)"
)
_LEFT = (
    "Another rank ended, and this one only noticed: look for that one's error in the logs and in "
    "rank-N.json"
)
_WAITED = (
    "This rank waited for another that did not come: one that skipped a collective (an all_reduce "
    "or a backward under an `if`), took fewer steps, or failed. scaling.told(run), of "
    "course.analysis, tells how far each came and what it said; collective_timeout_s is how long "
    "they wait"
)
_TOO_FEW = "There are more ranks on this machine than GPUs: launch with fewer gpus, or on the CPU"
# The first pattern that is found decides: what is certain stands before what is likely.
_KNOWN: tuple[tuple[str, str | Callable[[], str]], ...] = (
    (r"killed by signal: Bus error|</torch_\d+_.*(No space left|Cannot allocate)", _shared_full),
    (r"unable to (write to file|allocate shared memory)", _shared_full),
    (_NO_ROOM, _disk_full),
    (r"[Tt]oo many open files|received \d+ items of ancdata", _FILES),
    (_ENDED, _worker_died),
    (r"DataLoader timed out after", _STUCK),
    (r"Connection closed by peer|[Cc]onnection reset by peer|Broken pipe|recvBytes failed", _LEFT),
    (
        r"Timed out waiting|timed out after|Socket Timeout|[Ww]ait timeout after|"
        rf"Application timeout|{_WATCHDOG}|clients joined",
        _WAITED,
    ),
    (r"Caught MemoryError in DataLoader|in DataLoader worker[\s\S]*can't allocate", _MEMORY),
    (r"OSError: \[Errno 12\]", _MEMORY),
    (r"invalid device ordinal", _TOO_FEW),
)
