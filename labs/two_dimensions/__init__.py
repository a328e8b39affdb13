"""Lab: Two dimensions at work."""
