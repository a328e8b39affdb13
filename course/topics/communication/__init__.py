"""What ranks say to each other: messages, metrics, statistics, layers left out."""

from course.topics.communication import pictures
from course.topics.communication.batchnorm import spread, statistics
from course.topics.communication.report import comm_report, compared, messages, recorded_runs
from course.training.stochastic_depth import Heads
