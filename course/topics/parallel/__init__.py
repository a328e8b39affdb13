"""One network on several devices: layers shared out, or stages one after the other."""

from course.topics.parallel import pictures
from course.topics.parallel.cuts import cut_by, pieces, shared
from course.topics.parallel.schedules import bubble, ideal, idle, in_flight, order, simulate
from course.topics.parallel.timelines import (
    bubbles,
    order_of,
    recorded,
    replay,
    shares,
    timeline,
    ways,
)
from course.topics.parallel.timelines import ideal as ideal_of
