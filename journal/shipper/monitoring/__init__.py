"""What an operator sees of a shipper: metrics, health, the status page, the status file."""
