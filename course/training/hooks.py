"""Hooks: what a lab adds to the training process of a run that it launches.

`launch(…, hooks=["PACKAGE.MODULE:CLASS"])` writes their names into the run's launch.json, and
`recording()` imports and creates them; a script may also give some to its meter. "observers" there
names classes that rank 0's supervisor creates with the run, so that no script can change them: it
calls `look()` now and then, and `end()` once the process is over.
"""

from __future__ import annotations

from collections.abc import Mapping
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class RunEnded(BaseException):  # so that no handler of errors takes it for one
    """Raised by a hook to end its run as `cancelled`, with everything it measured.

    The message gives the reason.
    """


class Hook:
    """What happens at the events of a run. A class overrides the methods that it needs.

    The script calls `ready` to `save_network`, as methods of the recorder, and errors in them reach
    it. The course calls the others: an error in them is printed, and training continues.
    """

    def __init__(self, recorder: Any) -> None:  # a course.training.recorder.Recorder
        self.recorder = recorder

    def begin(self, device: torch.device, clock: Any, first: int) -> None:
        """Note the begin of training; earlier processes of the run have completed `first` steps.

        Args:
            clock: a trainspeed.clocks.Clock.
        """

    def begin_epoch(self) -> None:
        """Note the begin of an epoch's steps."""

    def before_update(self) -> None:
        """Note the end of a backward pass."""

    def end_step(self) -> None:
        """Note the end of a step."""

    def steps_finished(self, rows: list[dict[str, Any]]) -> None:
        """Receive rows of `steps.jsonl`; of a long run, they are of every k-th step."""

    def end_epoch(self) -> None:
        """Note the end of an epoch's steps, or of training."""

    def evidence(self) -> dict[str, Any]:
        """Return fields of `course.runs.evidence.Evidence`, at the end of an epoch's steps."""
        return {}

    def epoch(self, number: int, values: Mapping[str, float]) -> None:
        """Receive the results of an epoch, counted from 1."""

    def ready(self) -> None:
        """Note the end of the preparation."""

    def keep_weights(self, net: torch.nn.Module) -> None:
        """Keep the current weights."""

    def weights_saved(self) -> None:
        """Note that `save_weights` has written the weights."""

    def save_network(self, net: torch.nn.Module) -> None:
        """Save what the network computes."""

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
            "MODULE:CLASS of a package that this process can import"
        ) from error
