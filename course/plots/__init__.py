"""Pictures from numbers: functions that take DataFrames or records and return a Picture."""

from course.plots.base import Picture
from course.plots.explain import layers, queue_sketch, samples
from course.plots.history import power, training_times
from course.plots.machine import cluster, node, supercomputer
from course.plots.runs import ladder, step_and_loss

__all__ = ["Picture", "cluster", "ladder", "layers", "node", "power", "queue_sketch", "samples",
           "step_and_loss", "supercomputer", "training_times"]  # fmt: skip
