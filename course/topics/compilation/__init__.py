"""What the compiler makes of a network: graphs, kernels, and when it pays."""

from course.topics.compilation import pictures
from course.topics.compilation.carried import carried, inferred
from course.topics.compilation.made import (
    Tail,
    breaks,
    compilations,
    graph,
    kernels,
    mended,
    paid_after,
)
from course.topics.compilation.measured import (
    compile_s,
    losses,
    modes,
    recorded_kernel,
    recorded_part,
    shapes,
)
