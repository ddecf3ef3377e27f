"""Speed of one core at decoding a journal in Python: rows of eight columns, from file to values.

Times ``JournalReader.changes`` over a real file: reading it, its checksums, texts, and a look
at every value of every row, as a consumer takes. Prints a line for each part, and as the last
line one JSON object; ``python_rows_per_s`` is the median over all runs with full rows.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from firebird_cdc.journal.format import (
    Column,
    JournalReader,
    JournalWriter,
    RowChange,
    Storage,
    Value,
)

ROWS = 200_000
TINY_ROWS = 2_000


def _column(name: str, storage: Storage, **more: int) -> Column:
    return Column(
        name=name,
        sql_type=0,
        sub_type=0,
        scale=more.get("scale", 0),
        length=8,
        charset_id=more.get("charset_id", 0),
        char_length=40,
        precision=0,
        nullable=name != "ID",
        identity=False,
        key_position=int(name == "ID"),
        storage=storage,
    )


def _columns(charset_id: int) -> list[Column]:
    return [
        _column("ID", Storage.BIGINT),
        _column("CUSTOMER", Storage.INTEGER),
        _column("AMOUNT", Storage.BIGINT, scale=-2),
        _column("NAME", Storage.TEXT, charset_id=charset_id),
        _column("CITY", Storage.TEXT, charset_id=charset_id),
        _column("ORDERED", Storage.TIMESTAMP),
        _column("PAID", Storage.BOOLEAN),
        _column("WEIGHT", Storage.DOUBLE),
    ]


CITIES = ("Москва", "Berlin", "São Paulo", "Novosibirsk", "Санкт-Петербург")
RUSSIAN_CITIES = ("Москва", "Berlin", "Томск", "Novosibirsk", "Санкт-Петербург")


def _row(number: int, cities: Sequence[str]) -> list[Value]:
    return [
        number,
        number % 5000,
        number * 199,
        f"customer number {number}",
        cities[number % len(cities)],
        52_000_000_000_000 + number * 7919,
        number % 3 == 0,
        number * 0.25,
    ]


def _write(path: Path, kind: str, rows: int) -> None:
    """Write the events of ROWS rows: inserts, rows with NULLs, updates, or inserts in WIN1251."""
    win1251 = kind == "win1251"
    cities = RUSSIAN_CITIES if win1251 else CITIES
    with JournalWriter(path, transaction=1, database="/bench.fdb", user="SYSDBA") as writer:
        table = writer.table("ORDERS", _columns(52 if win1251 else 4))
        for number in range(rows):
            row = _row(number, cities)
            if kind == "nulls":
                row[number % 7 + 1] = None
            if kind == "updates":
                writer.update(table, row, [*row[:6], True, None])
            else:
                writer.insert(table, row)
        writer.seal()


def _run(path: Path, rows: int) -> float:
    """Read the journal of ROWS rows, look at every value, and return the rows per second."""
    seen = 0
    started = time.perf_counter()
    with JournalReader(path) as reader:
        for change in reader.changes():
            if isinstance(change, RowChange):
                for row in (change.before, change.after):
                    if row is not None:
                        for value in row:
                            if value is not None:
                                seen += 1
    seconds = time.perf_counter() - started
    if seen < rows * 7:
        raise SystemExit(f"{path}: only {seen} values were decoded")
    return rows / seconds


def main() -> None:
    """Write the journals, read them in turn, and print the figures."""
    parser = argparse.ArgumentParser(description="Decode journals in Python, on one core.")
    parser.add_argument("--quick", action="store_true", help="7 runs of each part, not 25")
    parser.add_argument("--tiny", action="store_true", help="few rows: tells whether it works")
    arguments = parser.parse_args()
    runs = 1 if arguments.tiny else 7 if arguments.quick else 25
    rows = TINY_ROWS if arguments.tiny else ROWS
    kinds = ("inserts", "nulls", "win1251", "updates")
    figures: dict[str, list[float]] = {kind: [] for kind in kinds}
    sizes = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind in kinds:
            path = Path(folder, kind)
            _write(path, kind, rows)
            sizes[kind] = path.stat().st_size
        for _ in range(runs):
            for kind in kinds:
                figures[kind].append(_run(Path(folder, kind), rows))
    for kind, rates in figures.items():
        middle = statistics.median(rates)
        print(
            f"{kind:8} {middle:10,.0f} events/s (from {min(rates):,.0f} to {max(rates):,.0f} "
            f"in {runs} runs of {rows:,}), {middle * sizes[kind] / rows / 1e6:.0f} MB/s"
        )
    result = {
        "python_rows_per_s": round(statistics.median(figures["inserts"])),
        "python_rows_with_null_per_s": round(statistics.median(figures["nulls"])),
        "python_rows_win1251_per_s": round(statistics.median(figures["win1251"])),
        "python_updates_per_s": round(statistics.median(figures["updates"])),
        "rows_decoded": rows * runs,
        "runs": runs,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
