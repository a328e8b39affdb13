"""Trials of a search as jobs: which is next, what came of it, and an array of workers on Slurm."""
