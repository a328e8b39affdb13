"""Where the numbers of a batch lie in memory."""

from course.topics.layout import pictures
from course.topics.layout.convolution import convolution_times, recorded_convolution
from course.topics.layout.strides import (
    addresses,
    conversions,
    ms_by_channels,
    operator_layouts,
    parts,
)
from course.traces.tables import layout_kernels
from course.training.evidence.operators import layout as layout_of
