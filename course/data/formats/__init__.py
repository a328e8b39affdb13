"""The same images stored otherwise: tar shards, small JPEG files, raw bytes; who makes them."""
