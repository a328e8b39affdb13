"""The private names of PyTorch that only electives use; 2.11 and 2.15 have no other."""

import torch

int8_product = torch._int_mm  # torch.mm returns int8, in which sums overflow
fp8_product = torch._scaled_mm  # the recordings are of its kernels; scaled_mm's are not measured
gpu_sleep = torch.cuda._sleep  # a kernel with a name of its own: NVTX marks launches, not kernels
