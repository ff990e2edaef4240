"""Scores on the RWKU probes."""
