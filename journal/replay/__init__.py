"""Replay on Spark: an audit of a folder of journals, and the last state of its tables.

`source` makes journals readable as tables of Spark; `audit`, `state`, `sql` and `repair` are built
on it with Spark's own operators; `cluster` starts or joins a Spark; `commands` holds what the
command line does, and `main` is the file that spark-submit takes.
"""
