"""What training scripts are made of: for labs that build, predict or observe a training step.

Scripts import from its modules. `models` and `optimizers` create what a config names, and
`predict_memory` predicts its memory.
"""

import lazy_loader

_NAMES = {
    "attempts": "attempt",
    "evidence.operator_calls": "operator_calls",
    "evidence.operators": "layout",
    "hooks": "Hook RunEnded",
    "memory_prediction": "predict_memory",
    "meter": "speed_quartiles",
    "precision": "autocast channels_last HALF half_format has_units set_tf32",
    "recorder": "cpu_name device_name Recorder",
    "stochastic_depth": "Heads",
}
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    ["memory_prediction", "models", "optimizers"],
    {module: names.split() for module, names in _NAMES.items()},
)
