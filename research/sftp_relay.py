"""Pass SFTP between standard input and output and a local server, with a network's delay.

sshfs runs this as its `ssh_command`: python sftp_relay.py ROUND_TRIP_MS REQUESTS
Each request and each answer is delayed by half a round trip, without limiting how many are on
their way. The file REQUESTS gets one byte per request: its type, as SFTP numbers it.
"""

import os
import queue
import subprocess
import sys
import threading
import time
from typing import BinaryIO

SERVER = "/usr/lib/openssh/sftp-server"


def relay(source: BinaryIO, target: BinaryIO, delay_s: float, log: BinaryIO) -> None:
    """Copy packets, four bytes of length and the content, until the source ends."""
    packets: queue.SimpleQueue = queue.SimpleQueue()

    def write() -> None:
        while packet := packets.get():
            due, content = packet
            while (left := due - time.perf_counter()) > 0:
                time.sleep(left)
            target.write(content)
            target.flush()

    writer = threading.Thread(target=write)
    writer.start()
    while size := source.read(4):
        content = source.read(int.from_bytes(size, "big"))
        log.write(content[:1])
        packets.put((time.perf_counter() + delay_s, size + content))
    packets.put(None)
    writer.join()
    target.close()


def main() -> None:
    """Relay until sshfs closes the connection."""
    delay_s, pipes = float(sys.argv[1]) / 2e3, {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with (
        subprocess.Popen([SERVER], **pipes) as server,
        open(os.devnull, "wb") as nothing,
        open(sys.argv[2], "wb", buffering=0) as log,  # complete even if sshfs ends this process
    ):
        answers = (server.stdout, sys.stdout.buffer, delay_s, nothing)
        threading.Thread(target=relay, args=answers, daemon=True).start()
        relay(sys.stdin.buffer, server.stdin, delay_s, log)


if __name__ == "__main__":
    main()
