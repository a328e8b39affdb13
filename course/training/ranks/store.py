"""The process with the store through which the ranks of a local run find each other."""

from __future__ import annotations

import signal
import socket
import sys


def serve(descriptor: int) -> None:
    """Serve PyTorch's store at a listening socket until this process is ended.

    Ranks may connect earlier: they wait until PyTorch is imported here.
    """
    from torch.distributed import TCPStore

    with socket.socket(fileno=descriptor) as listener:
        host, port = listener.getsockname()
        listener_fd = listener.detach()  # the store closes it
    _store = TCPStore(
        host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener_fd
    )
    signal.pause()


if __name__ == "__main__":
    serve(int(sys.argv[1]))
