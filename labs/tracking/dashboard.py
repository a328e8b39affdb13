"""A dashboard of runs in a notebook: losses, speed, energy and accuracy, filtered by tag."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ipywidgets import HTML, Dropdown, VBox

from course import Run
from course.charts import Picture, widget_view
from course.runs import all_runs
from labs.tracking.figures import plot_dashboard
from labs.tracking.trackers import tags
from labs.tracking.tracking import select_by_tags

ALL = "all runs"


@dataclass(frozen=True, repr=False)
class Dashboard:
    """Runs side by side: with a menu of tags in a notebook, as a picture elsewhere."""

    runs: tuple[Run, ...]
    tag: str = ""

    def picture(self, tag: str = "") -> Picture:
        """Draw the runs that have a tag; by default all of them."""
        return plot_dashboard(select_by_tags(self.runs, tag) if tag else self.runs)

    @property
    def tags(self) -> list[str]:
        """The tags of all runs."""
        return sorted({tag for run in self.runs for tag in tags(run)})

    def widget(self) -> VBox:
        """Create a menu of tags above the picture, which it redraws."""
        page = HTML(self.picture(self.tag)._repr_html_())
        options = [(ALL, ""), *((tag, tag) for tag in self.tags)]
        menu = Dropdown(options=options, value=self.tag, description="tag:")

        def redraw(change: dict[str, Any]) -> None:
            page.value = self.picture(change["new"])._repr_html_()

        menu.observe(redraw, "value")
        return VBox([menu, page])

    def __repr__(self) -> str:
        return self.picture(self.tag).alt

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """Return the widget, a picture for a page without a kernel, and text for a terminal."""
        picture = self.picture(self.tag)
        page = picture._repr_mimebundle_()
        return {**widget_view(self.widget()), **page, "text/plain": picture.alt}


def dashboard(runs: Iterable[Run] | None = None, tag: str = "") -> Dashboard:
    """Show runs side by side, by default all of yours that trained.

    Args:
        tag: show only runs with this tag.

    Raises:
        ValueError: no run has trained, or none has the tag; the message lists all tags.
    """
    runs = all_runs() if runs is None else runs
    trained = tuple(run for run in runs if run.record and len(run.steps))
    if not trained:
        raise ValueError("no run has trained yet: launch one. course runs lists all of them")
    if tag:
        select_by_tags(trained, tag)
    return Dashboard(trained, tag)
