"""A first GPU kernel: Triton, on a GPU or interpreted, and the same in CUDA C++."""
