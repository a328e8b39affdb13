"""A job that requests a petabyte from torch."""

import torch

from course.training.recorder import recording

with recording():
    torch.empty(10**15, dtype=torch.uint8)
