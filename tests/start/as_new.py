"""Run a script in a process that is forked, as if it were started anew.

    python -m as_new STDOUT STDERR CODE SCRIPT ARGUMENT...

What it prints goes into files; so does its exit code, at its end.
"""

import os
import runpy
import sys
import traceback
from pathlib import Path

out, err, code, script, *arguments = sys.argv[1:]
for number, path in ((1, out), (2, err)):
    os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
sys.argv[:] = [script, *arguments]
sys.path[0] = str(Path(script).parent)
ended = 0
try:
    runpy.run_path(script, run_name="__main__")
except SystemExit as end:
    ended = end.code if isinstance(end.code, int) else int(end.code is not None)
    if isinstance(end.code, str):
        print(end.code, file=sys.stderr)
except BaseException:
    traceback.print_exc()
    ended = 1
sys.stdout.flush()
Path(code).write_text(str(ended))
