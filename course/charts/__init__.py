"""Charts: the `Picture` class, primitives, and figures of runs."""

from course.lazy import lazy_exports

_NAMES = {
    ".base": "Picture",
    ".primitives": "plot_bar_panels",
    ".runs": "plot_ladder plot_ladder_progress plot_learning_curves plot_step_and_loss",
}
__getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
