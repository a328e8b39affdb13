"""Many runs: found again, compared by eye, and what they cost in energy and CO2."""

from course.runs.trackers.content import tags
from course.topics.tracking import pictures
from course.topics.tracking.carbon import GRIDS, HOST, PUE, by_grid, carbon
from course.topics.tracking.energy import all_recorded, bill, joules
from course.topics.tracking.habits import habits, what_to_log
from course.topics.tracking.tables import differing, explained, tagged, together
