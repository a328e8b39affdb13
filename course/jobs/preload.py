"""Import the modules of training scripts once, in the process from which they are forked.

Importing touches no accelerator and starts no thread: a fork would not survive either.
"""

import atexit
import gc
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy would start its threads when imported
gc.disable()  # searching a million new objects for garbage takes a quarter of the time

import torch.distributed.checkpoint.state_dict  # noqa: E402, F401
import torch.distributed.fsdp  # noqa: E402, F401
import torch.distributed.pipelining  # noqa: E402, F401 - with the compiler, as optimizers do
import torchvision  # noqa: E402, F401

import course._compat  # noqa: E402, F401
import course.data.loader  # noqa: E402, F401
import course.training.meter  # noqa: E402, F401
import course.training.models  # noqa: E402, F401
import course.training.optimizers  # noqa: E402, F401
import course.training.precision  # noqa: E402, F401
import course.training.profiling  # noqa: E402, F401
import course.training.recorder  # noqa: E402, F401
import course.training.sync_batchnorm  # noqa: E402, F401

gc.enable()
gc.freeze()  # forks then leave these objects' pages shared
atexit.register(gc.unfreeze)  # or nanobind reports them as leaked
