"""Greedy completions of a policy for named prompt sets."""
