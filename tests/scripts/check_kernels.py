"""Check kernels as learners write them, in a process with Triton's interpreter.

    check_kernels.py CASES OUT FOLDER

CASES: a list of [check, function, text of its cell]. OUT: each case's message, and whether it
passed; and the table of `traffic_by_tile`.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from written_helpers import defined

from course import check_written
from electives import kernel as lab
from electives.kernel.gpu_timing import IMPORTS

cases, out, folder = map(Path, sys.argv[1:])
lab.interpret()
results = []
for number, (name, function, text) in enumerate(json.loads(cases.read_text())):
    case_folder = folder / f"case_{number}"
    case_folder.mkdir()
    checked = check_written(name, defined(text, function, case_folder, IMPORTS))
    results.append([repr(checked), checked.passed])
tiles = lab.traffic_by_tile(check_written("kernel.matmul", print).function, (16, 32), size=64)
out.write_text(json.dumps({"results": results, "tiles": tiles.to_dict("list")}))
