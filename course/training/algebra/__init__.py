"""relu(BatchNorm(z W') + identity) by algebra: a bottleneck ResNet that moves fewer bytes."""
