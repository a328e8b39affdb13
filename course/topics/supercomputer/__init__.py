"""Nodes, storage, queues; why one scales, and what it costs."""

from course.topics.supercomputer import pictures
from course.topics.supercomputer.history import full_training, power, training_times
from course.topics.supercomputer.nodes import cluster, machine
