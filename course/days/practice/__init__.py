"""Lab 4.5: its checks, and the runs that machines record for it."""
