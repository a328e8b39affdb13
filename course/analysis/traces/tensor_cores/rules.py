"""Which kernels ran on Tensor Cores, by name; and how often the rules about names are right.

The rules are in rules.toml, the kernels on which they are scored, with what shows the
truth about each, in kernels_labelled.csv.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

RULES = Path(__file__).with_name("rules.toml")
USED, NOT, UNKNOWN = VERDICTS = ("used", "not", "unknown")
LABELLED = Path(__file__).with_name("kernels_labelled.csv")
# Below the first share of cycles in the Tensor Cores' pipe a kernel has no product there, from the
# second on it has. Between them nothing is sure: on an H100 a pointwise GELU kept the pipe busy
# for 12 % of the cycles, and the product of two small matrices for 1 %.
NONE, SURE = 0.005, 0.15


class RuleError(ValueError):
    """A table of rules that cannot be used; the message names the rule and what is valid."""


@dataclass(frozen=True)
class Rule:
    """One rule; the fields are explained at the top of rules.toml."""

    pattern: str
    verdict: str
    example: str
    why: str
    generation: str = ""
    formats: str = ""


@dataclass(frozen=True)
class Verdict:
    """What a kernel's name tells: used, not or unknown, and the rule that decided."""

    verdict: str
    generation: str = ""
    formats: str = ""
    why: str = "No rule decides this name."
    pattern: str = ""


@cache
def rules(path: Path = RULES) -> tuple[Rule, ...]:
    """The rules in their order.

    Raises:
        RuleError: no such file, no TOML, no rule, or one with a field missing, unknown or wrong.
    """
    try:
        content = tomllib.loads(path.read_text())
    except OSError as error:
        raise RuleError(f"{path}: {error.strerror}; the course ships {RULES.name}") from None
    except ValueError as error:  # of TOML or of Unicode
        raise RuleError(f"{path} is no TOML: {error}") from None
    found = content.get("rule")
    if not isinstance(found, list) or not found:
        raise RuleError(f"{path} holds no rule: begin each with a line [[rule]]")
    return tuple(_rule(entry, f"{path}, rule {at}") for at, entry in enumerate(found, 1))


def _rule(entry: dict[str, str], where: str) -> Rule:
    known = [field.name for field in fields(Rule)]
    unknown = sorted(set(entry) - set(known))
    missing = [name for name in known[:4] if not entry.get(name)]
    if unknown or missing:
        raise RuleError(
            f"{where} (example {entry.get('example', 'none')!r}): unknown fields {unknown}, "
            f"missing {missing}; a rule has {', '.join(known)}; the last two may be left out"
        )
    rule = Rule(**entry)
    if rule.verdict not in VERDICTS:
        raise RuleError(f"{where}: verdict {rule.verdict!r}; valid are {', '.join(VERDICTS)}")
    try:
        re.compile(rule.pattern)
    except re.error as error:
        raise RuleError(f"{where}: {rule.pattern!r} is no regular expression: {error}") from None
    return rule


@cache
def classify(name: str, table: tuple[Rule, ...] | None = None) -> Verdict:
    """What the first rule says whose pattern is found in the kernel's name, short or full.

    Args:
        name: as PyTorch's profiler, Nsight Systems or Nsight Compute give it.
        table: other rules than the course's.
    """
    for rule in rules() if table is None else table:
        if re.search(rule.pattern, name):
            return Verdict(rule.verdict, rule.generation, rule.formats, rule.why, rule.pattern)
    return Verdict(UNKNOWN)


def labelled() -> pd.DataFrame:
    """The course's labelled kernels: kernel, truth, generation, evidence, library, part.

    How they were chosen stands at the top of kernels_labelled.csv.
    """
    lines = LABELLED.read_text().splitlines()
    head = next(at for at, line in enumerate(lines) if not line.startswith("#"))
    return pd.read_csv(LABELLED, skiprows=head)


def score(
    kernels: pd.DataFrame | None = None, table: tuple[Rule, ...] | None = None
) -> pd.DataFrame:
    """Precision and recall of the verdict "used", one row for each part and generation.

    Columns: part, generation ("all": together), kernels, used (that truly are), found (of
    those), false_alarms (called used and are not), denied (called not and are used), unknown
    (no rule decides), precision = found / (found + false_alarms), recall = found / used (so an
    unknown one counts as missed), decided (share with a verdict). NaN where nothing is divided.

    Args:
        kernels: kernel and truth, and part and generation where you have them.
        table: other rules than the course's.
    """
    known = labelled() if kernels is None else kernels
    defaults = {"part": "yours", "generation": "all"}
    known = known.assign(**{name: value for name, value in defaults.items() if name not in known})
    known["verdict"] = [classify(name, table).verdict for name in known["kernel"]]
    rows = []
    for part, group in known.groupby("part", sort=False):
        rows.append({"part": part, "generation": "all", **_counts(group)})
        for generation, few in group.groupby("generation", sort=False):
            if generation != "all":
                rows.append({"part": part, "generation": generation, **_counts(few)})
    return pd.DataFrame(rows)


def _counts(table: pd.DataFrame) -> dict[str, float]:
    used, said = table["truth"] == USED, table["verdict"]
    found, alarms = int((used & (said == USED)).sum()), int((~used & (said == USED)).sum())
    unknown = int((said == UNKNOWN).sum())
    return {
        "kernels": len(table),
        "used": int(used.sum()),
        "found": found,
        "false_alarms": alarms,
        "denied": int((used & (said == NOT)).sum()),
        "unknown": unknown,
        "precision": _share(found, found + alarms),
        "recall": _share(found, int(used.sum())),
        "decided": _share(len(table) - unknown, len(table)),
    }


def _share(part: int, whole: int) -> float:
    return part / whole if whole else np.nan
