"""Import what training scripts import, once, in the process that their processes are forked from.

Importing touches no accelerator and starts no thread: a fork would not survive either.
"""

import gc
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy would start its threads when imported
gc.disable()  # searching for garbage among a million new objects takes a quarter of the time

import torch._dynamo  # noqa: E402, F401 - imported by the first optimizer
import torch.distributed.checkpoint.state_dict  # noqa: E402, F401
import torch.distributed.fsdp  # noqa: E402, F401
import torch.distributed.pipelining  # noqa: E402, F401
import torchvision  # noqa: E402, F401

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
