"""What moves in a notebook: the quiz form, the live queue."""
