"""What is run again after an edit, and what is not."""
