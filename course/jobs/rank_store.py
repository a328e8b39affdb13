"""The process with the store through which the ranks of a local run find each other."""

from __future__ import annotations

import multiprocessing
import socket
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess


def start_store(context: BaseContext) -> tuple[BaseProcess, int]:
    """Start the store of a local run's ranks; return its process and port.

    PyTorch's own store, in rank 0, would listen to other machines too, on a port that may be taken
    by then. This one listens on loopback, on a port that the system chose, as torchrun's does.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        process = context.Process(target=_serve, args=(listener,))
        process.start()
        return process, listener.getsockname()[1]


def _serve(listener: socket.socket) -> None:
    """Serve PyTorch's store at a listening socket until the supervisor ends.

    Ranks may connect earlier: they wait until PyTorch is imported here.
    """
    from torch.distributed import TCPStore

    host, port = listener.getsockname()
    descriptor = listener.detach()  # the store closes it
    _store = TCPStore(
        host, port, is_master=True, wait_for_workers=False, master_listen_fd=descriptor
    )
    multiprocessing.parent_process().join()
