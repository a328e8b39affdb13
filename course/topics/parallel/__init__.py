"""One network on several devices: layers cut over ranks, and stages that pass features on."""

from course.topics.parallel import pictures
from course.topics.parallel.balance import cut_by, pieces
from course.topics.parallel.borders import traps
from course.topics.parallel.compared import compared
from course.topics.parallel.cuts import cuts
from course.topics.parallel.dtensors import convolved, parallelized
from course.topics.parallel.forgotten import forgotten
from course.topics.parallel.messages import sent, share
from course.topics.parallel.mlp import mlp
from course.topics.parallel.recorded import recorded, ways
from course.topics.parallel.schedules import bubble, ideal, idle, in_flight, order, simulate
from course.topics.parallel.timelines import (
    bubbles,
    order_of,
    pipelines,
    replay,
    timeline,
)
from course.topics.parallel.timelines import ideal as ideal_of
