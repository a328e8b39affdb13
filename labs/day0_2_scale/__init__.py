"""Lab 0.2: scale and energy."""
