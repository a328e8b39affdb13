"""The parts of README and docs that are written from recorded runs."""
