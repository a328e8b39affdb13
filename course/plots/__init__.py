"""Pictures from numbers: what all pictures share, and those that several subjects need."""

from course.plots.base import Picture
from course.plots.explain import layers, queue_sketch, samples
from course.plots.runs import climbed, ladder, step_and_loss

__all__ = ["Picture", "climbed", "ladder", "layers", "queue_sketch", "samples", "step_and_loss"]
