"""Replay on Spark: an audit of a folder of journals, and the last state of its tables.

`datasource` makes journals readable as tables of Spark; `history`, `audit` and `state` are
built on it with Spark's own operators; `session` starts or joins a Spark; `commands` holds
what the command line does, and `main` is the file that spark-submit takes.
"""
