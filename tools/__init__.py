"""Tools that the repository needs and learners do not."""
