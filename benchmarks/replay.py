"""Speed of a replay: of Spark at rebuilding a table, rows per second and core; and without Spark.

A row here is a change that is read: 6 of 10 insert a row of eight columns, 3 update one, 1 deletes
one, at random. The same changes lie in one journal, in 1,000 journals, and, typed and with their
places, in Parquet files. What is timed is `rebuild_state` from its call to its return: it plans,
reads, checks every checksum, folds, and writes the table as Parquet with its summary. Parquet is
folded by Spark alone: brought together by key, sorted by place, the last of each key written.

Each run with Spark is in a process of its own, pinned to one core or two with the JVM and the
Python workers that it starts. All start while the data is made, and warm up side by side on a tenth
of it (JVM, compilers, Python), which is not counted; then one measures after the other, its parts
in turns. Of each the fastest counts, as all else on the machine only adds to it; all are told.

Without Spark it is the command `replay audit` that is timed, from its start to its end on all
cores, on transactions of one row each in shared journals; and once with Spark, too.

    --tiny      so little of all that it tells whether it works, and no more
    --quick     done in under 50 s: fewer rows, fewer turns, and Java code compiled once and
                quickly: for seconds, compiling well costs more than it brings. SPARK_SUBMIT_OPTS,
                if it is set, says otherwise for either

The last line is one JSON object:
    rows_per_s_per_core   from one journal, on one core
    vs_parquet            that, relative to rows_per_s_parquet: Spark from Parquet, on one core
    growth_1000_files     time from 1,000 journals relative to one, on one core
    speedup_2_cores       time from one journal on one core relative to two
    cpu_us_per_row        user and system time of all processes, from one journal on one core
    audit_rows_per_s_per_core, audit_cpu_us_per_row     without --quick: `replay audit` of the
                          one journal by itself, on one core
    single_rows_vs_bulk   without --quick: rate from transactions of one row each in shared
                          journals, relative to the same rows in one transaction, on one core
    rows, rows_left       changes read, rows of the table at the end
    peak_memory_mib       the most memory of each process on one core, JVM included, added up
    local_seconds_20000_transactions, local_peak_memory_mib     `replay audit --engine local`, all
                          processes together (shared pages once); --tiny: of 2,000
    local_vs_spark        without --quick: seconds of `--engine spark` relative to these
    local_seconds_1000000_transactions, local_peak_memory_mib_1000000_transactions
                          without --quick and --tiny: the same of a million
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock
from uuid import uuid4

from firebird_cdc.journal.format import (
    Column,
    JournalWriter,
    SharedJournalWriter,
    Storage,
    Table,
    TransactionWriter,
)

FILES = 1000
_MOST_SINGLES = 200_000
_FEW, _MANY = 20_000, 1_000_000  # transactions of one row for the audit without Spark
_LOOKED_S = 0.05
_SHARED_BYTES = 16 * 1024 * 1024
_DAY_0_US = 40_587 * 86_400_000_000
_IMAGE = struct.Struct("<BqiqHHq?d")
_U32 = struct.Struct("<I")
_INSERT, _UPDATE, _DELETE = 3, 4, 5  # kinds of records in the journal format
_CITIES = [
    city.encode() for city in ("Москва", "Berlin", "São Paulo", "Novosibirsk", "Санкт-Петербург")
]
_NAMES = ("ID", "CUSTOMER", "AMOUNT", "NAME", "CITY", "ORDERED", "PAID", "WEIGHT")

Row = tuple[int, int, int, bytes, bytes, int, bool, float]
Change = tuple[str, Row | None, Row | None]


def _columns() -> list[Column]:
    def column(name: str, storage: Storage, **more: int) -> Column:
        return Column(
            name=name,
            sql_type=0,
            sub_type=more.get("sub_type", 0),
            scale=more.get("scale", 0),
            length=160 if storage is Storage.TEXT else 8,
            charset_id=4 if storage is Storage.TEXT else 0,
            char_length=40 if storage is Storage.TEXT else 0,
            precision=0,
            nullable=name != "ID",
            identity=False,
            key_position=int(name == "ID"),
            storage=storage,
        )

    return [
        column("ID", Storage.BIGINT),
        column("CUSTOMER", Storage.INTEGER),
        column("AMOUNT", Storage.BIGINT, scale=-2, sub_type=1),
        column("NAME", Storage.TEXT),
        column("CITY", Storage.TEXT),
        column("ORDERED", Storage.TIMESTAMP),
        column("PAID", Storage.BOOLEAN),
        column("WEIGHT", Storage.DOUBLE),
    ]


# The data.


def _changes(count: int) -> Iterator[Change]:
    """Yield COUNT changes as they would follow from each other."""
    pick = random.Random(count)
    alive: list[Row] = []
    for number in range(count):
        chance = pick.random()
        if chance < 0.6 or not alive:
            row: Row = (
                number,
                number % 5000,
                number * 199,
                b"customer number %d" % number,
                _CITIES[number % 5],
                52_000_000_000_000 + number * 7919,
                number % 3 == 0,
                number * 0.25,
            )
            alive.append(row)
            yield "c", None, row
            continue
        at = int(pick.random() * len(alive))
        old = alive[at]
        if chance < 0.9:
            new = (*old[:2], old[2] + 100, *old[3:6], not old[6], old[7])
            alive[at] = new
            yield "u", old, new
        else:
            alive[at] = alive[-1]
            alive.pop()
            yield "d", old, None


def _image(row: Row) -> bytes:
    key, customer, amount, name, city, ordered, paid, weight = row
    fixed = _IMAGE.pack(0, key, customer, amount, len(name), len(city), ordered, paid, weight)
    return fixed + name + city


def _add(
    writer: JournalWriter | TransactionWriter, columns: list[Column], changes: Sequence[Change]
) -> None:
    table: Table = writer.table("ORDERS", columns)
    add = writer._add
    for op, before, after in changes:
        if op == "c":
            assert after is not None
            add(_INSERT, table.number, _image(after), event=True)
        elif op == "d":
            assert before is not None
            add(_DELETE, table.number, _image(before), event=True)
        else:
            assert before is not None
            assert after is not None
            old = _image(before)
            add(_UPDATE, table.number, _U32.pack(len(old)) + old + _image(after), event=True)
    writer.seal()


def _write_journal(path: Path, sequence: int, changes: Sequence[Change]) -> None:
    with JournalWriter(
        path, transaction=1000 + sequence, database="/bench.fdb", user="SYSDBA"
    ) as writer:
        path.rename(path.with_name(f"{writer.uuid}.log"))
        _add(writer, _columns(), changes)
        writer.commit(sequence, 1_700_000_000_000_000 + sequence)
        writer.stamp(sequence)


def _write_journals(folder: Path, changes: Sequence[Change], files: int) -> None:
    folder.mkdir()
    size = -(-len(changes) // files)
    with mock.patch("os.fsync"):
        for number in range(files):
            part = changes[number * size : (number + 1) * size]
            _write_journal(folder / f"{number}.tmp", number + 1, part)


def _write_shared_journals(folder: Path, changes: Sequence[Change]) -> None:
    """Write CHANGES as transactions of one change each, in journals of 16 MiB."""
    folder.mkdir()
    columns = _columns()
    with mock.patch("os.fsync"):
        _fill(folder, columns, changes)


def _fill(folder: Path, columns: list[Column], changes: Sequence[Change]) -> None:
    numbered = enumerate(changes, 1)
    left = len(changes)
    while left:
        path = folder / f"{uuid4()}.log"
        with SharedJournalWriter.create(path, database="/bench.fdb") as journal:
            for sequence, change in numbered:
                left -= 1
                written = TransactionWriter(journal.header, 1000 + sequence, "SYSDBA")
                _add(written, columns, [change])
                at = journal.append(written)
                commit_us = 1_700_000_000_000_000 + sequence
                journal.commit(written, sequence, ticket=sequence, commit_us=commit_us)
                if at > _SHARED_BYTES:
                    break
            journal.close()


def _write_parquet(folder: Path, changes: Sequence[Change]) -> None:
    """Write the same changes with their places and as typed columns; of a delete only the key."""
    import pyarrow as pa  # type: ignore[import-untyped,import-not-found,unused-ignore]
    import pyarrow.parquet as pq  # type: ignore[import-untyped,import-not-found,unused-ignore]

    folder.mkdir()
    kinds = [pa.int64(), pa.int32(), pa.decimal128(19, 2), pa.string(), pa.string()]
    kinds += [pa.timestamp("us"), pa.bool_(), pa.float64()]
    step = 200_000
    for start in range(0, len(changes), step):
        part = changes[start : start + step]
        rows = []
        for _, before, after in part:
            row = after or before
            assert row is not None
            if after is None:
                rows.append((row[0], *[None] * 7))
            else:
                rows.append((*row[:5], row[5] * 100 - _DAY_0_US, *row[6:]))
        columns = dict(zip(_NAMES, map(list, zip(*rows, strict=True)), strict=True))
        amounts = pa.array(columns["AMOUNT"], pa.int64()).cast(pa.decimal128(19, 0))
        arrays: list[Any] = [
            pa.array(columns[name], kind) if name != "AMOUNT" else None
            for name, kind in zip(_NAMES, kinds, strict=True)
        ]
        arrays[2] = pa.Array.from_buffers(kinds[2], len(part), amounts.buffers())
        count = len(part)
        place = [pa.array([0] * count, pa.int64()), pa.array([1] * count, pa.int64())]
        place.append(pa.array(range(start + 1, start + count + 1), pa.int64()))
        place.append(pa.array([op for op, _, _ in part]))
        names = ("epoch", "sequence", "position", "operation", *_NAMES)
        table = pa.Table.from_arrays([*place, *arrays], names=names)
        pq.write_table(table, folder / f"{start}.parquet")


# What is measured, in a process of its own.

_WARM = "warm"


class _Bench:
    """A Spark of this process, pinned to CORES."""

    def __init__(self, spark: Any, data: Path, scratch: Path) -> None:
        self.spark = spark
        self._data = data
        self.scratch = scratch
        self._number = 0

    def _output(self) -> str:
        self._number += 1
        return str(self.scratch / f"out-{self._number}")

    def state(self, folder: str) -> dict[str, Any]:
        from firebird_cdc.journal.replay.state.rebuild import rebuild_state

        output = self._output()

        def run() -> int:
            report = rebuild_state(self.spark, [folder], output)
            assert report.whole, report.holes
            return sum(table.rows for table in report.tables)

        return self._timed(run, output)

    def audit(self, _: str) -> dict[str, Any]:
        """Audit the one journal: checksums, numbers, and that each change fits the one before."""
        from firebird_cdc.journal.replay.audit.journals import run_audit

        def run() -> int:
            report = run_audit(self.spark, [str(self._data / "one")])
            assert report.sound
            return -1

        return self._timed(run, self._output())

    def parquet(self, folder: str) -> dict[str, Any]:
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        output = self._output()

        def run() -> int:
            place = ("epoch", "sequence", "position")
            window = Window.partitionBy("ID").orderBy(*place)
            rows = (
                self.spark.read.parquet(folder)
                .withColumn("next", F.lead("ID").over(window))
                .where("next is null and operation <> 'd'")
                .drop("next", "operation", *place)
            )
            rows.write.parquet(output)
            return -1

        return self._timed(run, output)

    def _timed(self, run: Callable[[], int], output: str) -> dict[str, Any]:
        cpu = _tree_cpu_s()
        started = time.perf_counter()
        left = run()
        seconds = time.perf_counter() - started
        found = {"s": seconds, "cpu_s": _tree_cpu_s() - cpu, "left": left}
        shutil.rmtree(output, ignore_errors=True)
        return found


def _tree(root: int | None = None) -> list[int]:
    """Return a process, this one by default, and all below it."""
    below: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
            below.setdefault(parent, []).append(int(entry.name))
    found = [root or os.getpid()]
    for pid in found:
        found += below.get(pid, [])
    return found


def _tree_cpu_s() -> float:
    """Return the CPU time of the tree, of processes that have ended in it too."""
    ticks = 0
    for pid in _tree():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _tree_peak_mib() -> float:
    """Return the sum of the most memory that each process of the tree has had resident."""
    total = 0
    for pid in _tree():
        try:
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    return total / 1024


def _resident_mib(root: int) -> float:
    """Return the memory of a process and all below it, of what they share each its part."""
    total = 0
    for pid in _tree(root):
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:  # it has ended
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


def _audit(engine: str, folder: Path) -> tuple[float, float]:
    """Run the audit of FOLDER as users do; return the seconds, and the most memory in MiB."""
    command = [sys.executable, "-P", "-m", "firebird_cdc", "replay", "audit", "--quiet"]
    command += ["--engine", engine, "--journals", str(folder)]
    began, peak = time.perf_counter(), 0.0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            peak = max(peak, _resident_mib(process.pid))
            time.sleep(_LOOKED_S)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return time.perf_counter() - began, peak


def _without_spark(is_quick: bool, is_tiny: bool) -> dict[str, Any]:
    """Measure the audit without Spark."""
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="firebird-cdc-bench-") as scratch:
        few = Path(scratch) / "few"
        _write_shared_journals(few, list(_changes(_FEW // 10 if is_tiny else _FEW)))
        runs = [_audit("local", few) for _ in range(1 if is_quick else 3)]
        seconds, peak = min(runs)
        result[f"local_seconds_{_FEW}_transactions"] = round(seconds, 2)
        result["local_peak_memory_mib"] = round(peak)
        if not is_quick:
            result["local_vs_spark"] = round(_audit("spark", few)[0] / seconds, 2)
            many = Path(scratch) / "many"
            _write_shared_journals(many, list(_changes(_MANY)))
            seconds, peak = _audit("local", many)
            result[f"local_seconds_{_MANY}_transactions"] = round(seconds, 1)
            result[f"local_peak_memory_mib_{_MANY}_transactions"] = round(peak)
    return result


def _worker(arguments: argparse.Namespace) -> None:
    """Start Spark, take the folder of the data from stdin, warm up and say so, and at the next line
    measure in turns, and print what was found as JSON."""
    os.sched_setaffinity(0, set(map(int, arguments.cores.split(","))))
    from firebird_cdc.journal.replay.cluster.session import spark_session

    count = len(os.sched_getaffinity(0))
    found: dict[str, list[dict[str, Any]]] = {}
    with spark_session("benchmark", f"local[{count}]") as spark:
        spark.range(1).count()
        folder = sys.stdin.readline().rstrip("\n")
        if not folder:
            return  # who wanted to know has ended
        data = Path(folder)
        spark.conf.set("spark.sql.shuffle.partitions", "8")
        with tempfile.TemporaryDirectory(dir=data) as scratch:
            bench = _Bench(spark, data, Path(scratch))
            parts = arguments.parts.split(",")
            if "parquet" in parts:
                bench.parquet(str(data / "warm-parquet"))
            for _ in range(3):
                bench.state(str(data / "warm"))
            print(_WARM, flush=True)
            if not sys.stdin.readline():
                return
            for _ in range(arguments.turns):
                for part in parts:
                    run = getattr(bench, part, bench.state)
                    found.setdefault(part, []).append(run(str(data / part)))
        print(json.dumps({"runs": found, "peak_mib": _tree_peak_mib()}))


class _Measurement:
    """A process that measures: starts its Spark when it is made, then `warm_up`, then `run`."""

    def __init__(self, cores: Sequence[int], parts: Sequence[str], turns: int, java: str) -> None:
        command = [sys.executable, "-P", __file__, "--worker", "--turns", str(turns)]
        command += ["--cores", ",".join(map(str, cores)), "--parts", ",".join(parts)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={"SPARK_SUBMIT_OPTS": java, **os.environ},
        )

    def warm_up(self, data: Path) -> None:
        """Begin to warm up on DATA."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{data}\n")
        self._process.stdin.flush()

    def await_warm(self) -> None:
        """Wait until it is warm."""
        assert self._process.stdout is not None
        while (line := self._process.stdout.readline().rstrip("\n")) != _WARM:
            if not line:
                raise subprocess.CalledProcessError(self._process.wait(), self._process.args)

    def run(self) -> dict[str, Any]:
        """Measure, and end."""
        said, _ = self._process.communicate("measure\n")
        if self._process.returncode:
            raise subprocess.CalledProcessError(self._process.returncode, self._process.args)
        result: dict[str, Any] = json.loads(said.splitlines()[-1])
        return result

    def __enter__(self) -> _Measurement:
        return self

    def __exit__(self, *_exc: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()  # without data it ends
        self._process.wait()


@contextmanager
def _data(rows: int, singles: int) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="firebird-cdc-bench-") as folder:
        data = Path(folder)
        changes = list(_changes(rows))
        _write_journals(data / "one", changes, 1)
        _write_journals(data / "many", changes, FILES)
        _write_parquet(data / "parquet", changes)
        if singles:
            _write_journals(data / "bulk", changes[:singles], 1)
            _write_shared_journals(data / "shared", changes[:singles])
        warm = changes[: rows // 10]
        _write_journals(data / "warm", warm, 4)
        _write_parquet(data / "warm-parquet", warm)
        yield data


def main() -> None:
    """Make the data, measure on one core and on two, and print the figures."""
    parser = argparse.ArgumentParser(description="Rebuild a table from journals, on one core.")
    parser.add_argument("--quick", action="store_true", help="fewer rows and turns: under 50 s")
    parser.add_argument("--tiny", action="store_true", help="tells whether it works, and no more")
    parser.add_argument("--rows", type=int, help="changes in all (3,000,000; quick: 600,000)")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    for name in ("cores", "parts"):
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    parser.add_argument("--turns", type=int, help="measurements of each part (3; quick: 1)")
    arguments = parser.parse_args()
    if arguments.worker:
        _worker(arguments)
        return
    is_quick = arguments.quick or arguments.tiny
    usual = 4_000 if arguments.tiny else 600_000 if arguments.quick else 3_000_000
    rows = arguments.rows or usual
    turns = arguments.turns or (1 if is_quick else 3)
    cores = sorted(os.sched_getaffinity(0))
    java = "-XX:TieredStopAtLevel=1" if is_quick else ""
    parts = ["one", "many", "parquet"]
    singles = 0
    if arguments.tiny or not arguments.quick:
        parts += ["audit", "bulk", "shared"]
        singles = min(rows // 10, _MOST_SINGLES) if arguments.tiny else _MOST_SINGLES
    with ExitStack() as stack:
        alone = stack.enter_context(_Measurement(cores[-1:], parts, turns, java))
        pair = None
        if len(cores) > 1 and not arguments.tiny:
            pair = stack.enter_context(_Measurement(cores[-2:], ["one"], turns, java))
        data = stack.enter_context(_data(rows, singles))
        all_of_them = [each for each in (alone, pair) if each is not None]
        for each in all_of_them:
            each.warm_up(data)
        for each in all_of_them:
            each.await_warm()
        on_one = alone.run()
        on_two = None if pair is None else pair.run()
    best = {}
    for name, runs in on_one["runs"].items():
        best[name] = min(runs, key=lambda run: run["s"])
        times = " ".join(f"{run['s']:.2f}" for run in runs)
        count = singles if name in ("bulk", "shared") else rows
        print(
            f"{name:8} one core: {count / best[name]['s']:10,.0f} rows/s"
            f" ({times} s; {best[name]['cpu_s']:.2f} s of CPU)"
        )
    result = {
        "rows_per_s_per_core": round(rows / best["one"]["s"]),
        "vs_parquet": round(best["parquet"]["s"] / best["one"]["s"], 3),
        "growth_1000_files": round(best["many"]["s"] / best["one"]["s"], 3),
        "speedup_2_cores": None,
        "rows_per_s_parquet": round(rows / best["parquet"]["s"]),
        "cpu_us_per_row": round(best["one"]["cpu_s"] / rows * 1e6, 2),
        "peak_memory_mib": round(on_one["peak_mib"]),
        "rows": rows,
        "rows_left": best["one"]["left"],
    }
    if "audit" in best:
        result["audit_rows_per_s_per_core"] = round(rows / best["audit"]["s"])
        result["audit_cpu_us_per_row"] = round(best["audit"]["cpu_s"] / rows * 1e6, 2)
    if singles:
        result["single_rows_vs_bulk"] = round(best["bulk"]["s"] / best["shared"]["s"], 3)
    if on_two is not None:
        times = [run["s"] for run in on_two["runs"]["one"]]
        cpu = min(run["cpu_s"] for run in on_two["runs"]["one"])
        print(f"one      two cores: {min(times):.2f} s; {cpu:.2f} s of CPU")
        result["speedup_2_cores"] = round(best["one"]["s"] / min(times), 2)
    result |= _without_spark(is_quick, arguments.tiny)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
