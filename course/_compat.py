"""The private names of PyTorch that the course uses, each with its reason.

PyTorch 2.11 and 2.15 have no public name for them; tested with both.
"""

import hmac
import io
import pickle
from types import SimpleNamespace

import torch
from torch import distributed
from torch._subclasses import fake_tensor  # it looks for a GPU, unless patched
from torch.autograd import _profiler_enabled as is_profiling  # the profiler may be the script's
from torch.distributed import distributed_c10d
from torch.distributed.distributed_c10d import _resolve_process_group as group_named
from torch.nn.parallel import DistributedDataParallel as DDP

from trainspeed._compat import (
    FakeTensorMode,
    TorchDispatchMode,
    tensors_in,
    tree_leaves,
    tree_map_only,
)

active_ddp = DDP._get_active_ddp_module  # the one whose forward is running
# The kernels of scaled_dot_product_attention, for selective checkpointing.
KERNELS = ("flash_attention", "flash_attention_for_cpu", "efficient_attention", "cudnn_attention")
ATTENTION = [getattr(torch.ops.aten, f"_scaled_dot_product_{name}").default for name in KERNELS]
__all__ = ["FakeTensorMode", "TorchDispatchMode", "fake_tensor", "group_named", "is_profiling"]
__all__ += ["tensors_in", "tree_leaves", "tree_map_only"]


def base_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor of which this is a view, or the tensor itself."""
    base = tensor._base
    return tensor if base is None else base


def timeout_s() -> float | None:
    """Return the default group's timeout, which public functions only set; None if it has none."""
    device = torch.device(distributed.get_backend_config().partition(":")[0])
    options = getattr(distributed.group.WORLD._get_backend(device), "options", None)
    return options and options._timeout.total_seconds()


def compiler_counters() -> dict[str, dict[str, int]]:
    """Return the compiler's counters (its public logs are text); importing it takes seconds."""
    from torch._dynamo.utils import counters

    return counters


def sign_objects(key: bytes) -> None:
    """Let ranks that share a secret key load only objects that one of them has sent: PyTorch sends
    pickles, which run any code when they are loaded, and another user of the machine can take a
    rank's place, because a group's ports have no password.
    """

    def pickler(file: io.BytesIO) -> SimpleNamespace:
        return SimpleNamespace(dump=lambda value: write(file, pickle.dumps(value)))

    def write(file: io.BytesIO, data: bytes) -> None:  # hmac.digest takes less than 2 GiB
        file.writelines([hmac.new(key, data, "sha256").digest(), data])

    def unpickler(file: io.BytesIO) -> pickle.Unpickler:
        signature, data = file.read(32), file.read()
        if not hmac.compare_digest(signature, hmac.new(key, data, "sha256").digest()):
            raise RuntimeError("an object is not from a rank of this run: someone took its place")
        return pickle.Unpickler(io.BytesIO(data))

    # Private, and read at each call; there is no public way to choose how objects are sent.
    distributed_c10d._pickler, distributed_c10d._unpickler = pickler, unpickler
