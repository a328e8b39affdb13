"""What a run computes: the settings of each script, and the ladder of rungs.

`common.py` has the settings of all scripts, `scripts.py` a class for each script with its own.
"""

# ruff: noqa: F401, I001 - they are offered here
from course.config.common import BOUNDS, CHOICES, DEFAULTS, GIB, HALF_FORMATS, SCRIPTS, Config
from course.config.common import all_settings, change, from_dict, parse_settings, resolve_half
from course.config.ladder import (
    COMPILED,
    FULL_SIZE,
    LADDER,
    LADDERS,
    QUICK,
    RUNGS,
    SYNTHETIC,
    rung,
    vary,
)
from course.config.rules import CROPS_PX, TRACE_WAIT
