"""What one training step really did, as it was seen below autocast: the evidence of checks."""
