"""Rows, splits, terms and the embedded world."""
