"""Pictures from numbers: what all pictures share, and those that several subjects need."""

from course.charts.base import Picture
from course.charts.explain import bar_panels, layers, queue_sketch, samples
from course.charts.runs import climbed, ladder, learning_curves, step_and_loss

__all__ = [
    "Picture",
    "bar_panels",
    "climbed",
    "ladder",
    "layers",
    "learning_curves",
    "queue_sketch",
    "samples",
    "step_and_loss",
]
