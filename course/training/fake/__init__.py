"""Training steps that compute nothing: on fake tensors, on an accelerator that is not there."""
