"""Lab 1.4: the profiler, and proof."""
