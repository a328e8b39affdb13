"""What runs on the GPU, in Triton: products, passes over rows, the stem; and how it is compiled."""
