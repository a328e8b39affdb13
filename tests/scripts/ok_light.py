"""A job that ends well, and imports no torch."""

print("all is well")
