"""What a run leaves: its folder, record, steps and logs, and what they say of it."""
