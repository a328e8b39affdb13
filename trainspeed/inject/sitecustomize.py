"""Start trainspeed's probe in every Python process of a profiled command, when it imports torch.

Python imports this module by itself, because its folder is on PYTHONPATH. It then imports the
sitecustomize that it hides, if there is one.
"""

import importlib.abc
import importlib.util
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


class TorchFinder(importlib.abc.MetaPathFinder):
    """Run the probe's `install` as soon as torch has been imported."""

    def find_spec(self, name, path, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        if spec and spec.loader:
            execute = spec.loader.exec_module

            def execute_and_install(module):
                execute(module)
                load_package()
                from trainspeed import probe

                probe.install()

            spec.loader.exec_module = execute_and_install
        return spec


def load_package():
    """Make `trainspeed` importable, also in an environment in which it is not installed."""
    if "trainspeed" not in sys.modules:
        folder = os.path.dirname(HERE)
        path = os.path.join(folder, "__init__.py")
        spec = importlib.util.spec_from_file_location(
            "trainspeed", path, submodule_search_locations=[folder]
        )
        sys.modules["trainspeed"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["trainspeed"])


sys.path = [path for path in sys.path if os.path.abspath(path) != HERE]
this = sys.modules.pop("sitecustomize")
try:
    import sitecustomize  # noqa: F401  the environment's own
except ImportError as error:
    if error.name != "sitecustomize":
        raise
    sys.modules["sitecustomize"] = this
if os.environ.get("TRAINSPEED_PLAN"):
    sys.meta_path.insert(0, TorchFinder())
