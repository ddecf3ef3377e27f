"""Snapshots of a database in use: which transactions they see, what proves it, and their rows."""
