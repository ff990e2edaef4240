"""Identity: what a result was made from, as canonical JSON and digests."""
