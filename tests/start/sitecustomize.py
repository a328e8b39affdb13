"""Python runs this as it starts a process of the test run: importing takes less time.

PyTorch's import makes a million objects that stay. To look for garbage among them takes a quarter
of it. And submitit imports NumPy, where it can be had, before it runs a job: a third of the time
that a job's supervisor takes to start, which has no use for it.
"""

import gc
import sys

gc.set_threshold(100_000, 50, 100)


class NotYet:
    """Finds no NumPy the first time."""

    def find_spec(self, name: str, *_: object) -> None:
        if name == "numpy":
            sys.meta_path.remove(self)
            raise ImportError("not yet")


if "submitit.core._submit" in sys.orig_argv:
    sys.meta_path.insert(0, NotYet())
