"""What a step would take at best on a machine."""

from course.topics.roofline import pictures
from course.topics.roofline.bounds import ceilings, points, recorded_ceilings
from course.topics.roofline.cost import fused, operators, step_cost
