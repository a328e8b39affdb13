"""Formats of stored images: tar shards, small JPEG files, raw bytes, GPU decoding."""
