"""A browser without a window, and servers for it to look at."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
DEADLINE_S = 60
PAGE_MS = 8000  # of the page's own clock, which does not wait where nothing happens


def page(address: str, home: Path) -> str:
    """What a page holds once its scripts have run; skips where there is no browser."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip(f"no browser here: none of {', '.join(NAMES)} is installed")
    command = [program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    command += [f"--user-data-dir={home}", f"--virtual-time-budget={PAGE_MS}", "--dump-dom"]
    return subprocess.run(
        [*command, address], capture_output=True, text=True, timeout=DEADLINE_S, check=True
    ).stdout


def ask(address: str, **asked: Any) -> Any:
    """The answer of a server's API: to a question in JSON, or without one to a GET."""
    data = json.dumps(asked).encode() if asked else None
    request = urllib.request.Request(address, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
        return json.load(answer)


@contextlib.contextmanager
def serving(command: list[str], port: int, **variables: str) -> Iterator[str]:
    """The address of a server, for as long as this lasts."""
    server = subprocess.Popen(
        command,
        env={**os.environ, "BROWSER": "true", **variables},  # it opens none by itself
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end and server.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.1)
        assert server.poll() is None, f"{command[0]} has ended"
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(DEADLINE_S)


def free_port() -> int:
    """A port that nobody listens to."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
