"""The process with the store through which the ranks of a local run find each other."""

from __future__ import annotations

import multiprocessing
import os
import socket


def serve(listener: socket.socket) -> None:
    """Serve PyTorch's store at a listening socket until the supervisor ends.

    Ranks may connect earlier: they wait until PyTorch is imported here.
    """
    os.setsid()  # as every process of a run does: runs are found by their session
    from torch.distributed import TCPStore

    host, port = listener.getsockname()
    ours = listener.detach()  # the store closes it
    _store = TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=ours)
    multiprocessing.parent_process().join()
