"""Runs: folders, records, steps, logs, ratios, recordings of other machines, export."""
