"""What holds the memory of a training step."""
