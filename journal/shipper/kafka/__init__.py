"""Kafka as the shipper uses it: the client, the offset topic, topics to be made."""
