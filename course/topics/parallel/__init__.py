"""One network on several devices: layers cut over ranks, and stages that pass features on."""

from course.topics.parallel.compared import compared
from course.topics.parallel.cuts import cuts
from course.topics.parallel.dtensors import convolved, parallelized
from course.topics.parallel.forgotten import forgotten
from course.topics.parallel.messages import sent, share
from course.topics.parallel.mlp import mlp
from course.topics.parallel.recorded import recorded, ways
