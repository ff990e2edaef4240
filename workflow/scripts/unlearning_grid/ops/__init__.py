"""Commands for people: what is there, what is missing, and why."""
