"""A job that fills the disk on which its run lies, and then ends well."""

try:
    with open("filler", "w") as file:
        while True:
            file.write("x" * 4096)
except OSError:
    pass  # the disk is full
