"""A learner's kernel on the GPU, compiled in a process of its own: the notebook's interprets.

python -m labs.lab_kernel.gpu_timing FILE NAME prints the rows that were measured, as JSON.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pandas as pd
import torch

from labs.lab_kernel import measurements as measured
from labs.lab_kernel.launch import Kernel

IMPORTS = """import triton
import triton.language as tl
from labs.lab_kernel.solutions import load_tile, store_tile
"""


def on_gpu(kernel: Kernel) -> pd.DataFrame | None:
    """What a kernel of the lab takes on this machine's GPU, beside PyTorch's; None: there is none.

    Columns: kernel, by, size, dtype, block, seconds, gb_per_s, tflop_per_s.

    Raises:
        RuntimeError: it could not be compiled, or failed; the message is the process's last lines.
    """
    if not torch.cuda.is_available():
        return None
    plain = kernel.fn
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.py"
        file.write_text(IMPORTS + inspect.getsource(plain))
        environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
        command = [sys.executable, "-P", "-m", __name__, str(file), plain.__name__]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError("\n".join(done.stderr.splitlines()[-8:]))
    return measured.rates(pd.DataFrame(json.loads(done.stdout.splitlines()[-1])))


def main(file: str, name: str) -> None:
    """Time the kernel of this name that a file defines."""
    spec = importlib.util.spec_from_file_location("kernel", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    print(json.dumps([*measured.MEASUREMENTS[name](getattr(module, name))]))


if __name__ == "__main__":
    main(*sys.argv[1:])
