"""Images for training: synthetic tensors, the default set, ImageNet, crops; and their loader."""
