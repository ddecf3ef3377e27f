"""The journal format and all that reads it: shipping to Kafka, and replay on Spark."""
