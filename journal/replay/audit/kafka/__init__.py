"""Journals against Kafka: the messages that should be there beside those that are."""
