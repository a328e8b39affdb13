"""Check kernels as learners write them, in a process that interprets.

    check_kernels.py CASES OUT FOLDER

CASES: a list of [check, function, text of its cell]. OUT: for each what is said, whether it passed.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from written_helpers import defined

from course import check_written
from labs import lab_kernel as kernels

cases, out, folder = map(Path, sys.argv[1:])
kernels.interpret()
from labs.lab_kernel import solutions as given  # noqa: E402 - as it is interpreted

IMPORTS = """import triton
import triton.language as tl
from labs.lab_kernel.solutions import load_tile, store_tile
"""
told = []
for place, (name, function, text) in enumerate(json.loads(cases.read_text())):
    own = folder / f"case_{place}"
    own.mkdir()
    checked = check_written(name, defined(text, function, own, IMPORTS))
    told.append({"said": repr(checked), "passed": checked.passed, "failed": checked.failed})
tables = {
    "tiles": kernels.tiles(check_written("kernel.matmul", print).function, sides=(16, 32), size=64)
}
a, b = torch.randn(50, 70).half(), torch.randn(70, 90).half()
tuned = torch.full((50, 90), torch.nan)
tiles = {"TALL": 16, "WIDE": 32, "DEEP": 16, "GROUP": 3}  # four by three tiles
given.matmul_tuned[(12,)](a, b, tuned, 50, 90, 70, **tiles)
error = float((tuned - a.float() @ b.float()).abs().max())
found = {
    "told": told,
    "tuned_error": error,
    **{name: each.to_dict("list") for name, each in tables.items()},
}
out.write_text(json.dumps(found))
