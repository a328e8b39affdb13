"""What a lab's author needs: a lab's entry, its checks of scripts and functions, and its configs.

Nothing here imports PyTorch, so a lab's `lab.py` stays fast to import.
"""

# ruff: noqa: F401, I001 - they are offered here
from course.checks import facts, lab_configs as configs, results
from course.checks.facts import Fact, Rank
from course.checks.lab import Exercise, Function, FunctionCheck, Lab, Place, Recording, Unexpected
from course.checks.lab import expect
from course.config import CHOICES, FULL_SIZE, SYNTHETIC, all_settings, from_dict
from course.runs.evidence import NOT_APPLICABLE, NotApplicable
from course.text import digits, read_utf8
