"""Observe a training step below autocast: the evidence that checks read."""
