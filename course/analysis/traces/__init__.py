"""What a profiler saw, as tables."""
