"""Who keeps what of a network that several ranks train: shares, what they cost, where they wait."""

from course.topics.sharding import pictures
from course.topics.sharding.formula import kept, sent
from course.topics.sharding.linear import accumulated, by_hand, source
from course.topics.sharding.measured import apart, compared, gathered, losses, parts, recorded, ways
from course.topics.sharding.measured import kept as kept_by
from course.topics.sharding.predicted import predict
from course.topics.sharding.refused import refused
from course.traces.tables import of_run as trace_of
