"""One network on several devices: layers cut over ranks, and stages that pass features on."""

from typing import Any

from course.topics.parallel.balance import cut_by, pieces
from course.topics.parallel.borders import traps
from course.topics.parallel.compared import compared
from course.topics.parallel.cuts import cuts
from course.topics.parallel.dtensors import convolved, parallelized
from course.topics.parallel.forgotten import forgotten
from course.topics.parallel.messages import sent, share
from course.topics.parallel.recorded import recorded, ways
from course.topics.parallel.schedules import bubble, ideal, idle, in_flight, order, simulate

# A rank's process imports this package, too: pandas and Matplotlib would take it most of a second.
_TIMELINES = ("bubbles", "ideal_of", "order_of", "pipelines", "replay", "timeline")


def __getattr__(name: str) -> Any:
    if name not in (*_TIMELINES, "mlp", "pictures"):
        raise AttributeError(f"module {__name__!r} has no {name!r}")
    import course.topics.parallel.pictures as pictures
    import course.topics.parallel.timelines as timelines

    others = {"pictures": pictures, "mlp": pictures.mlp, "ideal_of": timelines.ideal}
    return others[name] if name in others else getattr(timelines, name)
