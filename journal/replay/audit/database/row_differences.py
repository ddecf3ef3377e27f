"""Kinds of rows in which journals and database differ, and what is told of one."""

from __future__ import annotations

import json

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from firebird_cdc.journal.replay.audit.findings import Kind

DIFFERS, MISSING, UNKNOWN = "row differs", "row missing", "row unknown"
UNPROVEN, NOT_COMMITTED = "row unproven", "not committed"
KINDS = {
    DIFFERS: Kind(
        "find out who wrote the row past the connector (a server without the plugin, replication"
        " switched off); publish the row anew by an update that changes it"
    ),
    MISSING: Kind(
        "find out who deleted the row past the connector; consumers still have it: insert and"
        " delete it once more"
    ),
    UNKNOWN: Kind(
        "find out who wrote the row past the connector: a trigger on DDL (`firebird-cdc check"
        " --database` names those), or a server without the plugin; publish it by an update that"
        " changes it"
    ),
    NOT_COMMITTED: Kind("report this with the journal: it should never have been published"),
    UNPROVEN: Kind("find the journals that are missing there; then audit again", is_fault=False),
}


def differing_columns() -> Column:
    """The names of the columns that both texts have and that differ; null if one is null."""

    def differing(left: str | None, right: str | None) -> list[str] | None:
        if left is None or right is None:
            return None
        old, new = json.loads(left), json.loads(right)
        return [
            name
            for name, value in old.items()
            if name in new and value != new[name] and value != _UNAVAILABLE
        ]

    asked = F.udf(differing, "array<string>", useArrow=False)
    return asked("journal.row", "base.row")


_UNAVAILABLE = {"unavailable": True}


def reduce_rows(rows: DataFrame, common: dict[str, tuple[str, ...]]) -> DataFrame:
    """Leave the columns COMMON, by table, in the texts of ROWS."""
    if not common:
        return rows

    def reduce_row(table: str, row: str) -> str:
        names = common.get(table)
        if names is None:
            return row
        values = json.loads(row)
        return json.dumps(
            {name: values[name] for name in names}, ensure_ascii=False, separators=(",", ":")
        )

    return rows.withColumn(
        "row", F.udf(reduce_row, "string", useArrow=False)(F.col("table"), F.col("row"))
    )


def finding_sentence() -> Column:
    """Return a column that states a finding in one sentence."""
    writer = F.when(
        F.col("its_sequence").isNull(),
        F.format_string("transaction %d, of which there is no journal", "version"),
    ).otherwise(
        F.format_string(
            "transaction %d, whose journal (sequence %d) does not say so", "version", "its_sequence"
        )
    )
    known = F.format_string(
        "transaction %d (sequence %d, event %d)", "last_transaction", "sequence", "position"
    )
    name = F.format_string("%s %s", "table", F.coalesce("key", "row"))
    copies = F.when(F.col("copies") > 1, F.format_string(" (%d times)", "copies")).otherwise("")
    return (
        F.when(
            F.col("kind") == DIFFERS,
            F.concat(
                name,
                F.lit(": "),
                F.concat_ws(", ", "columns"),
                F.lit(" differ from what "),
                known,
                F.lit(" left; the row in the database is by "),
                writer,
            ),
        )
        .when(
            F.col("kind") == MISSING,
            F.concat(
                name, copies, F.lit(": "), known, F.lit(" left it, but it is not in the database")
            ),
        )
        .when(
            F.col("last_transaction").isNotNull() & F.col("key").isNotNull(),
            F.concat(
                name,
                F.lit(": "),
                known,
                F.lit(" deleted it, but it is in the database, by "),
                writer,
            ),
        )
        .otherwise(F.concat(name, copies, F.lit(": it is in the database, by "), writer))
    )
