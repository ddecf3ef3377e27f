"""Decides about journals whose transactions were committed, and publishes them."""
