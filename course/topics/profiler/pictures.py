"""Pictures of a profiled step."""

from course.traces.pictures import time_by, timeline
from course.traces.tensor_cores.pictures import tensor_cores

__all__ = ["tensor_cores", "time_by", "timeline"]
