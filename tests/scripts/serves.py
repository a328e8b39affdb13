"""Leave a server of warm starts behind that another one has forked: PyTorch is imported once.

    python serves.py NAME SIGNATURE USER

It lies where TMPDIR of its own process says, and serves whoever started this one.
"""

import json
import os
import sys
from functools import partial
from pathlib import Path

from course.jobs.warm import forks, server
from course.jobs.warm.fresh import Process

name, signature, user = sys.argv[1:]
body = partial(server._serve, name, signature, json.loads(user), lambda: None)
forks.fork(body, Process(server.COMMAND, dict(os.environ), Path("/"), session=True))
