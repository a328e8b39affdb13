"""Charts: for labs' figures, each a `Picture` in which these functions draw, and those of runs."""

import lazy_loader

_NAMES = {
    "base": (
        "ACCENT BLUE DARK FORMAT_COLOURS GREEN GREY "
        "ORANGE PHASE_COLOURS Picture PURPLE SKY widget_view words_on"
    ),
    "primitives": (
        "arrow bars box COLOURS describe heading label legend limit lines mark plot_bar_panels "
        "scatter_fit stack strip timeline"
    ),
    "runs": "plot_ladder plot_ladder_progress plot_learning_curves plot_step_and_loss",
}
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, None, {module: names.split() for module, names in _NAMES.items()}
)
