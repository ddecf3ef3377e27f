"""Journals against the live database."""
