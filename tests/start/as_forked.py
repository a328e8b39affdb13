"""Let the server of warm starts fork who executes a script: Slurm's tasks all start anew.

To import PyTorch takes four seconds of a core, for each rank. A script that begins with this module
is executed by a fork, with the environment, folder and streams of the process that Slurm started.
That one hands signals on, and ends as its fork does.
"""

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp

from course.jobs.warm import client

IS_FORK = "AS_FORKED"  # a variable of the fork's
client.ANSWER_S = 60  # a busy machine may let the server wait


def execute(name: str, signature: str, user: list[float]) -> None:
    """Come back in the fork alone; or here, where the server of that name does not fork it.

    Its user, a process, is whom the server lives for: not a job, which is over soon.
    """
    if os.environ.pop(IS_FORK, None):
        return
    code = Path(mkdtemp(), "code")
    streams = [f"/proc/{os.getpid()}/fd/{number}" for number in (1, 2)]
    asked = {
        "command": [sys.executable, "-m", "as_new", *streams, str(code), *sys.argv],
        "env": os.environ | {IS_FORK: "1"},
        "cwd": os.getcwd(),
        "user": user,
    }
    with suppress(FileNotFoundError, ConnectionRefusedError), client.connected(name) as server:
        fork = client.ask(server, {"kernel": asked, "signature": signature}).get("kernel")
        if not fork:
            return
        signal.signal(signal.SIGTERM, lambda number, _: os.kill(int(fork[0]), number))
        server.settimeout(None)
        server.recv(1)  # nothing comes: the fork's end closes the connection
        if not code.exists():  # it was killed
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(int(code.read_text()))
