"""The ways of a journal to Kafka: in transactions or without, again, and as a repair."""
