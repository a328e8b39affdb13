"""A training that is stopped and goes on: checkpoints, random numbers, interruptions on purpose."""
