"""Tidy tables and figures, from row-level results."""
