"""How images are stored, in which order they come, and who decodes them."""

from course.data.formats.convert import convert, index
from course.data.formats.shards import paths
from course.topics.formats import pictures
from course.topics.formats.disk import measure_disk, opening
from course.topics.formats.readers import members, reading
from course.topics.formats.shuffling import orders
from course.topics.formats.stages import costs
