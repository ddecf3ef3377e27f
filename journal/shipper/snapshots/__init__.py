"""Snapshots as the shipper drives them: what asks for one, and what is told of it."""
