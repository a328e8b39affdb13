"""Interactive forms in a notebook: the quiz and the live queue."""
