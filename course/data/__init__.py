"""Images for training: synthetic tensors, the default set, ImageNet; one loader for all."""
