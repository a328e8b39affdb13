"""Configs, which decide what a run computes, and the ladder of rungs as data."""

from course.config.common import BOUNDS as BOUNDS
from course.config.common import CHOICES as CHOICES
from course.config.common import COMPILED as COMPILED
from course.config.common import FULL_SIZE as FULL_SIZE
from course.config.common import GIB as GIB
from course.config.common import LADDER as LADDER
from course.config.common import QUICK as QUICK
from course.config.common import RUNGS as RUNGS
from course.config.common import SYNTHETIC as SYNTHETIC
from course.config.common import Config as Config
from course.config.common import from_dict as from_dict
from course.config.common import parse_settings as parse_settings
from course.config.common import resolve_half as resolve_half
from course.config.common import rung as rung
from course.config.common import vary as vary
from course.config.rules import CROPS_PX as CROPS_PX
from course.config.rules import HALF_FORMATS as HALF_FORMATS
from course.config.rules import SCRIPT_FIELDS as SCRIPT_FIELDS
from course.config.rules import TRACE_WAIT as TRACE_WAIT
