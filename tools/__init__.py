"""What the repository needs and learners do not."""
