"""Models behind OpenAI's API or a server that speaks it: requests, sending, replies kept."""
