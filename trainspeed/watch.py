"""Watch a training loop from inside it: in a notebook, or in a script that may be changed."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from trainspeed import page, profile
from trainspeed.recorder import Plan, Recorder, now


class Watch:
    """Time a loop's iterations, trace a few, and print one page when enough is known.

    Use it as the iterator of a loop::

        watch = Watch()
        for images, labels in watch(loader):
            ...
            watch.step(loss)

    The page is printed when the loop ends, once; `report` has its text, `values` what it shows.

    Args:
        plan: fields of `trainspeed.recorder.Plan`, such as `timed=20`.
    """

    def __init__(self, **plan: Any) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="trainspeed-")
        self._recorder = Recorder(Plan(self._folder.name, **plan), rule="calls of watch.step")
        self._is_printed = False

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches of a DataLoader or of anything else, and time the wait for each."""
        is_loader = isinstance(batches, torch.utils.data.DataLoader)
        if is_loader:
            self._recorder.add_loop(batches, "")
        begin = now()
        iterator = iter(batches)
        while True:
            with self._recorder.fetching():
                try:
                    batch = next(iterator)
                except StopIteration:
                    break
            self._recorder.add_batch(batches, begin, now(), batch)
            yield batch
            begin = now()
        if not self._is_printed:
            try:
                print(self.report)
            except profile.ProfileError as error:
                print(f"trainspeed: {error}")
            self._is_printed = True

    def step(self, loss: torch.Tensor | None = None) -> None:
        """End an iteration. The loss is optional, and not read."""
        self._recorder.mark()

    @property
    def values(self) -> dict[str, Any]:
        """What the page shows, as values.

        Raises:
            ProfileError: there were too few iterations.
        """
        self._recorder.finish()
        return page.values_of(profile.load(Path(self._folder.name)))

    @property
    def report(self) -> str:
        """The page as text."""
        return page.text_of(self.values)
