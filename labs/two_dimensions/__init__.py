"""Two dimensions at work: a GPT on a mesh of data and tensor parallelism."""

import lazy_loader

_NAMES = {
    "figures": "plot_shards",
    "meshes": "mesh_config stored_mib",
    "plans": "possible_plans step_s",
    "verify": "EXAMPLES recorded_choices",
}
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, None, {module: names.split() for module, names in _NAMES.items()}
)
