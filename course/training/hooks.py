"""Hooks: what a lab adds to the training process of a run that it launches.

`launch(…, hooks=["labs.NAME.MODULE:CLASS"])` writes their names into the run's launch.json, and
`recording()` imports and creates them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pkgutil import resolve_name
from typing import Any


class RunEnded(BaseException):  # so that no handler of errors takes it for one
    """Raised by a hook to end its run as `cancelled`, with everything it measured.

    The message gives the reason.
    """


class Hook:
    """What happens at the events of a run. A class overrides the methods that it needs.

    The course calls `epoch` and `end`: an error in them is printed, and training continues.
    """

    def __init__(self, recorder: Any) -> None:  # a course.training.recorder.Recorder
        self.recorder = recorder

    def epoch(self, number: int, values: Mapping[str, float]) -> None:
        """Receive the results of an epoch, counted from 1."""

    def end(self, status: str) -> None:
        """Add to the record with `recorder.set`, before it is written."""


def load(name: str) -> Any:
    """Import a class that a run's launch.json names.

    Raises:
        ValueError: there is no such class.
    """
    try:
        return resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"launch.json names the hook {name!r}, and importing it failed ({error}): expected "
            f"MODULE:CLASS, such as 'labs.NAME.MODULE:CLASS'"
        ) from error
