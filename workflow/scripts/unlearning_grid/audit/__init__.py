"""Labels for held-out completions."""
