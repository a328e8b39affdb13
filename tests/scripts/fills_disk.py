"""A job that fills the disk with its run's folder, and then ends normally."""

try:
    with open("filler", "w") as file:
        while True:
            file.write("x" * 4096)
except OSError:
    pass  # the disk is full
