"""Many images an update: how many are of use, and how a training still learns."""

from course.topics.large_batch.noise import Noise, noise
