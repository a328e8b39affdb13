"""What a step would take at best on a machine."""
