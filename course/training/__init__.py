"""What training scripts are made of: for labs that build, predict or observe a training step.

Scripts import from its modules. `models` and `optimizers` create what a config names; `memory`
measures it, and `fake_step` and `predict_memory` predict it.
"""

import lazy_loader

_NAMES = {
    "attempts": "attempt",
    "clocks": "clock_for speed_quartiles",
    "energy": "counter",
    "evidence.operator_calls": "operator_calls",
    "evidence.operators": "layout",
    "hooks": "Hook RunEnded",
    "memory_prediction": (
        "fake_step FakeStep memory_strategy NO_STRATEGY predict_memory saved_tensors tracked"
    ),
    "precision": "autocast channels_last HALF half_format has_units set_tf32",
    "recorder": "cpu_name device_name Recorder",
    "stochastic_depth": "Heads",
    "sync_batchnorm": "FILE",
}
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    ["memory", "memory_prediction", "models", "optimizers", "precision"],
    {module: names.split() for module, names in _NAMES.items()},
)
