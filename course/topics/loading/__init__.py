"""How batches reach the device in time."""

from course.data.loader import image_sets
from course.runs.failures import advice, in_one_line
from course.topics.loading import pictures
from course.topics.loading.feeding import (
    appetite,
    appetites,
    bytes_or_floats,
    cores_needed,
    decode_profile,
    loaded_by_one,
    trials,
)
