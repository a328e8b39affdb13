"""Which kernels used Tensor Cores, and how that is known."""
