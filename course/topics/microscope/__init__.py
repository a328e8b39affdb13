"""When Tensor Cores run: by rule, by a kernel's name, by a counter and by time."""

from course.topics.microscope import libraries, names, pictures
from course.topics.microscope.cases import Convolution, Product
from course.topics.microscope.here import here
from course.topics.microscope.pictures import by_load
from course.topics.microscope.record import ceilings, recorded
from course.topics.microscope.tables import generations, tools
