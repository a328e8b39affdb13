"""Who keeps what of a network that several ranks train: shares, what they cost, where they wait."""

from typing import Any

from course.topics.sharding.formula import kept, sent
from course.topics.sharding.linear import accumulated, by_hand, source
from course.topics.sharding.predicted import predict
from course.topics.sharding.refused import refused

# A rank's process imports this package, too: pandas and Matplotlib would take it most of a second.
_MEASURED = ("apart", "compared", "gathered", "kept_by", "losses", "parts", "recorded", "ways")


def __getattr__(name: str) -> Any:
    if name not in (*_MEASURED, "pictures", "trace_of"):
        raise AttributeError(f"module {__name__!r} has no {name!r}")
    import course.topics.sharding.measured as measured
    import course.topics.sharding.pictures as pictures
    from course.traces.tables import of_run

    others = {"pictures": pictures, "kept_by": measured.kept, "trace_of": of_run}
    return others[name] if name in others else getattr(measured, name)
