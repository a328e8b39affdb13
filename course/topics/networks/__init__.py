"""Three networks, measured side by side: SSD300, 3D U-Net and ResNet-50."""

from course.topics.networks import pictures, published
from course.topics.networks.cost import bounds, networks, operators
from course.topics.networks.here import measured_here, stepping
from course.topics.networks.measured import (
    beside,
    from_files,
    gains,
    inference,
    layouts,
    recorded,
    scaling,
)
