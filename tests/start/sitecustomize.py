"""Speed up importing PyTorch: Python runs this when it starts a process of the test run.

The import creates a million permanent objects; searching them for garbage is a quarter of its time.
"""

import gc

gc.set_threshold(100_000, 50, 100)
