"""The electives: labs beyond the five days, found the same way."""
