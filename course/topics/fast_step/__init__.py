"""The fast step: which bytes a training step moves, and which of them algebra makes unneeded."""

from course.topics.fast_step import pictures
from course.topics.fast_step.traffic import ceilings, measured, megabytes, passes
from course.topics.fast_step.written import products
from fast_resnet.formulas import differences
from fast_resnet.plain import convert
