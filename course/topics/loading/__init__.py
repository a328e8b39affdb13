"""How batches reach the device in time."""
