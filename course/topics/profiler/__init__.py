"""Where the time of a step goes, kernel by kernel, and which used Tensor Cores."""

from course.topics.profiler import pictures
from course.traces.tables import (
    by_kernel,
    by_operator,
    copies,
    idle,
    of_run,
    read,
    read_ncu,
    read_nsys,
)
from course.traces.tensor_cores import truth
from course.traces.tensor_cores.report import (
    kernels_of_run,
    score,
    tensor_core_report,
    tensor_core_summary,
)
from course.traces.tensor_cores.rules import classify
