"""What each lab adds to the course."""
