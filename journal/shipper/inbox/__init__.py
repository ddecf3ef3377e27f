"""Committed journals that wait: how they are found, and in which order they are sent."""
