"""Replay: an audit of a folder of journals, and the last state of its tables.

`source` makes journals readable as tables; `audit`, `state`, `sql` and `repair` are built on it
with the words of `relational`, which Spark computes or `local` does; `engine` chooses between them,
`cluster` starts or joins a Spark; `commands` holds what the command line does, and `main` is the
file that spark-submit takes.
"""
