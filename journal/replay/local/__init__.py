"""Replay on this machine without Spark: DuckDB for tables, worker processes for tasks."""
