"""What this lab measures. Import PyTorch inside functions, so that listing labs stays fast."""


def double(value: float) -> float:
    """Return twice the value."""
    return 2 * value
