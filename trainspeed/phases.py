"""Parts of a training step that a script may mark in a trace, by ranges with these names."""

PHASES = ("load", "forward", "loss", "backward", "optimizer")  # in order
