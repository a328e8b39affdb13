"""Python runs this as it starts a process of the test run: importing PyTorch takes less time.

An import makes a million objects that stay. To look for garbage among them takes a quarter of it.
"""

import gc

gc.set_threshold(100_000, 50, 100)
