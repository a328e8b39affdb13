"""Jobs: for labs that show how Slurm and processes work, or launch runs in a way of their own.

What most labs need, `launch` and `wait` for instance, is in `course`.
"""

import lazy_loader

_NAMES = {
    "launch": "JobError launch_planned refresh",
    "plan": "engine find_script plan_run",
    "presets": "preset",
    "processes": "job_environment loopback",
}
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    ["sites", "slurm_partitions"],
    {module: names.split() for module, names in _NAMES.items()},
)
