"""Several devices: who sees which image, how long messages take, what N devices bring."""

from course.runs.ranks import told
from course.topics.scaling import pictures
from course.topics.scaling.efficiency import (
    fit,
    predicted,
    published,
    recorded_runs,
    scaling,
)
from course.topics.scaling.node import beside_prediction
from course.topics.scaling.ring import Link, buckets, timeline
from course.topics.scaling.seen import shares
