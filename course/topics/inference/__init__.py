"""A network answers: how long that takes, in which ways, as which file, and with how many bits."""

from course.topics.inference import pictures
from course.topics.inference.export import (
    Session,
    compared,
    exported,
    has_onnx,
    installed,
    operators,
    tensorrt,
    to_onnx,
)
from course.topics.inference.export import to_int8 as to_int8_file
from course.topics.inference.fold import folded, norms
from course.topics.inference.int8 import by_bits, by_calibration, quantized
from course.topics.inference.ladder import ladder
from course.topics.inference.latency import curve, knee, waiting
from course.topics.inference.measured import recorded
from course.topics.inference.modes import forgotten
from course.topics.inference.trained import images_of, top1, train
from course.topics.inference.ways import LADDER, Way
