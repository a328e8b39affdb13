"""When Tensor Cores run: by rule, by a kernel's name, by a counter and by time."""

from course.topics.microscope import libraries, names, pictures
from course.topics.microscope.cases import Convolution, Product
from course.topics.microscope.here import here, near, on_gpu
from course.topics.microscope.known import channels
from course.topics.microscope.record import beside_rule, ceilings, odd, recorded
from course.topics.microscope.steps import in_steps
from course.topics.microscope.tables import generations, tools
