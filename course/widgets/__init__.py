"""Interactive forms in a notebook: the quiz and the live queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ipywidgets import Widget


def widget_view(widget: Widget) -> dict[str, Any]:
    """Return the entry of a MIME bundle that shows a widget; empty without a kernel.

    ipywidgets 7, which notebook services may have, gives its widgets no method that returns one.
    """
    if widget.model_id is None:
        return {}
    view = {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}
    return {"application/vnd.jupyter.widget-view+json": view}
