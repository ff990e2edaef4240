"""One module per reward; the registry maps names to them without importing them."""
