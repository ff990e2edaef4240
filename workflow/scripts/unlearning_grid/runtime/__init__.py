"""Running one stage: logs, work folders, leases, atomic publishing, manifests."""
