"""What the compiler makes of a network: graphs, kernels, and when it pays."""

from course.topics.compilation.made import (
    Tail,
    breaks,
    compilations,
    graph,
    kernels,
    paid_after,
)
