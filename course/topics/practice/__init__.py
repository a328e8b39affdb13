"""A training that can be stopped and repeated: the same bits again, and what checkpoints cost."""

from course.topics.practice import pictures
from course.topics.practice.bits import crops, machines, repeats, sums, threads
from course.topics.practice.live import small, stop
from course.topics.practice.saving import costs, gained, joined, lost
