"""Several devices: shares, messages, scaling."""
