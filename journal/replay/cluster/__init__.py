"""Spark itself: its session, its progress, and the archive of Python for its workers."""
