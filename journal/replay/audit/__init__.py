"""The audit: of journals by themselves, against Kafka, and against the database."""
