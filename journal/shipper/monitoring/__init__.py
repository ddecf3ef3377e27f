"""Output of a shipper for its operator: metrics, health, the status page, the status file."""
