"""What number formats can hold, and what training loses in them."""
