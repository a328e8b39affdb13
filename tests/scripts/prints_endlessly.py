"""A job whose standard error fills the disk with a single line; then it fails."""

import sys

try:
    while True:
        sys.stderr.write("x" * 4096)
        sys.stderr.flush()
except OSError:
    sys.exit(1)
