"""Publishes again what an audit found missing in Kafka."""
