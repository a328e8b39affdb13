"""What number formats can hold, and what training loses in them."""

from course.topics.numerics import pictures
from course.topics.numerics.learning import learned_digits
from course.topics.numerics.rounding import (
    DTYPES,
    formats,
    gradient_magnitudes,
    lost_share,
    lost_updates,
    operator_types,
    scaler_course,
    started_training,
    to_tf32,
)
