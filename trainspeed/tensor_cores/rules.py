"""Classify kernels by name: which ran on Tensor Cores. The rules are in rules.toml."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

RULES = Path(__file__).with_name("rules.toml")
USED, NOT, UNKNOWN = "used", "not", "unknown"


@dataclass(frozen=True)
class Rule:
    """One rule; the fields are explained at the top of rules.toml."""

    pattern: str
    verdict: str
    example: str
    why: str
    generation: str = ""
    formats: str = ""


NO_RULE = Rule("", UNKNOWN, "", "No rule decides this name.")


@cache
def rules() -> tuple[Rule, ...]:
    """Return the rules in their order."""
    return tuple(Rule(**fields) for fields in tomllib.loads(RULES.read_text())["rule"])


@cache
def classify(name: str) -> Rule:
    """Return the first rule whose pattern is in the kernel's name, or `NO_RULE`.

    Args:
        name: short or full, from PyTorch's profiler, Nsight Systems or Nsight Compute.
    """
    return next((rule for rule in rules() if re.search(rule.pattern, name)), NO_RULE)
