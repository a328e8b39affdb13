"""Many images an update: how many are of use, and how a training still learns."""

from course.topics.large_batch import pictures
from course.topics.large_batch.noise import Noise, noise
from course.topics.large_batch.trained import (
    along,
    batches,
    best,
    critical,
    ends,
    learned,
    network,
    over_seeds,
    search,
    state_gib,
    update_sizes,
)
