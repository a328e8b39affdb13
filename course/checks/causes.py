"""Name the cause of a failed check in the course's own words, without the learner's.

An instructor compares the causes of a whole class, so equal mistakes must have equal causes, and no
name, value or path that a learner wrote may be in one. A message is therefore not searched for what
is private: only the parts are kept that are sentences of the course's code, and the classes of
known exceptions.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any

from course.checks import discovery
from course.checks.store import FAILED
from course.runs import failures

# Of the course's modules, those that write messages of checks.
WRITERS = ("compare", "dry_runs", "facts", "fake_accelerator", "functions", "results", "verdict")
MOST_CHARACTERS = 120
UNKNOWN = "a different result"  # nothing in the message is the course's
SENTENCE = re.compile(r"[A-Za-z]{2,}\W*\s\W*[A-Za-z]{2,}")  # one word might be a learner's name
ENDED = r"(?<=: )(?:failed|oom|timeout|cancelled|lost)(?=\. )"  # a run's status, in `Run.explain`
EXCEPTIONS = {name for name, x in vars(builtins).items() if isinstance(x, type)}
EXCEPTIONS = {name for name in EXCEPTIONS if issubclass(getattr(builtins, name), BaseException)}
EXCEPTIONS |= {"OutOfMemoryError", "DataError", "BackendCompilerFailed", "DistBackendError"}
SIGNALS = r"(?:SEGV|KILL|ABRT|TERM|BUS|FPE)\b"  # after "SIG"


def cause_of(name: str, parts: Sequence[Any], sentences: Iterable[str] = ()) -> str:
    """Return which part of a check failed, and why; "" if none failed.

    Args:
        parts: of a `Checked`.
        sentences: of the check's messages, if they are not in the code of the course or the lab.
    """
    failed = next((part for part in parts if part.verdict == FAILED), None)
    if failed is None:
        return ""
    words = only(failed.evidence, [*sentences, *_sentences_of(name)]) or UNKNOWN
    text = f"{failed.part}: {words}"
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 1] + "…"


def only(message: str, sentences: Iterable[str]) -> str:
    """Return a message's parts that are sentences or exceptions; "…" replaces what is between."""
    known = {text.strip() for text in sentences if text.strip() in message}
    known = sorted(filter(SENTENCE.search, known), key=len, reverse=True)  # the longest first
    exceptions = rf"\b(?:{'|'.join(EXCEPTIONS)})\b"
    pattern = "|".join([*map(re.escape, known), exceptions, SIGNALS, ENDED])
    text, end = "", 0
    for match in re.finditer(pattern, message):
        gap = message[end : match.start()]
        text += (gap if gap in ("", " ", ": ", ", ", ". ", "; ") else " … ") * bool(text) + match[0]
        end = match.end()
    return re.sub(r" … (?=[,.:;`)])", " …", text).strip(" :,;")


def _sentences_of(name: str) -> Iterator[str]:
    """Yield the texts in the code that writes a check's messages: the course's and its lab's."""
    for fact in discovery.facts(name):
        yield from (fact.label, fact.hint)
    paths = [Path(failures.__file__), *(Path(__file__).with_name(f"{x}.py") for x in WRITERS)]
    for lab in discovery.labs():
        if name in lab.all_checks:
            paths += lab.folder.glob("*.py")
    for path in paths:
        yield from _sentences_in(path)


@cache
def _sentences_in(path: Path) -> frozenset[str]:
    """Return the sentences in a module's code, which Python has compiled: parsing is slower."""
    code = SourceFileLoader(path.stem, str(path)).get_code(path.stem)
    texts = {text.strip() for text in _texts(code) if SENTENCE.search(text)}
    return frozenset(text for text in texts if not text.endswith(".py, line"))  # but no places


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts in a code object, including those of the functions inside."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, CodeType | tuple):
        for inner in value.co_consts if isinstance(value, CodeType) else value:
            yield from _texts(inner)
