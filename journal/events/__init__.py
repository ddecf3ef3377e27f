"""Changes of journals as Debezium's events: rendering, topics, schemas, converters, transforms."""
