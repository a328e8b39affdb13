"""Changing images at random, alone and in pairs, and on which side it is done."""

from course.data.augment import randaugmented
from course.topics.augmentation import pictures
from course.topics.augmentation.images import (
    batch,
    changed,
    one_by_one,
    script_functions,
)
from course.topics.augmentation.measured import (
    brought,
    epochs,
    in_turns,
    operation_costs,
    operator_calls,
    work_per_image,
)
