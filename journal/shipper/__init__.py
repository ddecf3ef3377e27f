"""The shipper: takes committed journals to Kafka, and tells how that goes."""
