"""What runs on the GPU, in Triton: products, passes over rows, and the stem."""
