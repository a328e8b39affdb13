"""What a lab's author needs: a lab's entry, its checks of scripts and functions, and its configs.

Nothing here imports PyTorch, so a lab's `lab.py` stays fast to import.
"""

# ruff: noqa: F401, I001 - they are offered here
from course.checks import lab_configs as configs
from course.checks.facts import ROUGHLY, Contents, Fact, Missing, Rank, all_reduces, distinct
from course.checks.facts import entry, if_complete, kinds, progress, updated
from course.checks.lab import Exercise, Function, FunctionCheck, Lab, Place, Recording, Unexpected
from course.checks.lab import emulation_limits, expect
from course.checks.notes import CompileCall, ShardCall
from course.checks.results import call, compare, numbers
from course.config import CHOICES, DEFAULTS, FULL_SIZE, GIB, SYNTHETIC, all_settings, from_dict
from course.resources import core_count, memory_bytes, usable_cores
from course.runs.evidence import NOT_APPLICABLE, NotApplicable, check_path, value_at
from course.text import digits, one_line, read_utf8
