"""Processes of a job that are forked from one that has imported PyTorch already."""
