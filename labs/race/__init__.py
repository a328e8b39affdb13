"""Elective R: train to an accuracy, in the least time."""
