"""Stop and continue a training: checkpoints, random states, planned interruptions."""
