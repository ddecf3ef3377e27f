"""Periodic tasks beside shipping: heartbeats, canaries, the archive, and watches."""
