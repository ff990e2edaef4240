"""Pure measures of what a reward selected, beyond the study's own."""
