"""Our messages as Kafka Connect's own classes read them: the Python side of ConnectReader.java.

One Java process serves all tests. What it tells of a value is a list: the name of its Java class,
its content as text, and for a semantic type what Debezium's class of that type takes it for.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import subprocess
import tempfile
from base64 import b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from firebird_cdc.demo.maven import fetch_jars
from firebird_cdc.demo.paths import cache_directory
from firebird_cdc.demo.processes import tail

_HERE = Path(__file__).parent
# The versions of today's sinks; Debezium 3 is the first that Connect 4 runs.
_READERS = (
    "org.apache.kafka:connect-json:4.1.0",
    "org.apache.kafka:connect-runtime:4.1.0",
    "org.apache.kafka:connect-transforms:4.1.0",
    "io.debezium:debezium-connector-jdbc:3.3.1.Final",
    "com.h2database:h2:2.3.232",
    "org.slf4j:slf4j-nop:1.7.36",
)
# Not javac: to run our tests, as to run Kafka, a Java without a compiler is enough.
_COMPILER = ("org.eclipse.jdt:ecj:3.38.0",)
_JAVA_OPTIONS = ("-Xmx200m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
_KEPT = 4  # compiled programs; older ones go

Described = Any
"""A schema or a value as JSON; see ConnectReader.java."""


class Unreadable(Exception):
    """Java's words about a message that can't be read."""


class ConnectReader:
    """A Java process with Kafka Connect's JsonConverter and Debezium's transforms."""

    def __init__(self, errors: Path) -> None:
        self._errors = errors
        class_path = f"{_compiled()}:{_jars()}/*"
        with errors.open("wb") as log:
            self._process = subprocess.Popen(
                ["java", *_JAVA_OPTIONS, "-cp", class_path, "ConnectReader"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                encoding="utf-8",
            )

    def end(self) -> None:
        self._process.communicate(timeout=20)
        assert self._process.returncode == 0, tail(self._errors)

    def read(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Mapping[str, bytes] | None = None,
        *,
        key_schemas: bool = True,
        value_schemas: bool = True,
        transforms: Sequence[tuple[str, Mapping[str, str]]] = (),
    ) -> Described:
        """Return what JsonConverter makes of a message, and TRANSFORMS (class, options) of that.

        HEADERS: those that the key's converter wrote. ``written_key`` and ``written_value`` in
        the result: the JSON that JsonConverter makes of what it has read. Raises Unreadable, also
        for a value that is not valid in its schema.
        """
        return self._ask(
            {
                "do": "read",
                "topic": topic,
                "key": _base64(key),
                "value": _base64(value),
                "headers": {name: _base64(content) for name, content in (headers or {}).items()},
                "key_schemas": key_schemas,
                "value_schemas": value_schemas,
                "transforms": [
                    {"type": kind, "options": dict(options)} for kind, options in transforms
                ],
            }
        )

    def table_changes(self, table_changes: list[Any]) -> list[Described]:
        """Return what Debezium's schema history reads from a schema change's ``tableChanges``."""
        asked = {"do": "table_changes", "json": json.dumps(table_changes)}
        changes: list[Described] = self._ask(asked)["changes"]
        return changes

    def debezium_schemas(self, topic: str, value: bytes) -> Described:
        """Return Debezium's own schemas; its envelope is that for the row and source of VALUE."""
        return self._ask({"do": "schemas", "topic": topic, "value": _base64(value)})

    def sink(
        self, messages: Sequence[tuple[str, bytes | None, bytes | None]], table: str, **options: str
    ) -> list[dict[str, str | None]]:
        """Have Debezium's JDBC sink write MESSAGES (topic, key, value) into an empty database.

        OPTIONS of the sink, with _ for a dot. Returns the rows of TABLE by column, as texts.
        Raises Unreadable for what the sink refuses.
        """
        asked = {
            "do": "sink",
            "messages": [
                {"topic": topic, "key": _base64(key), "value": _base64(value)}
                for topic, key, value in messages
            ],
            "table": table,
            "options": {name.replace("_", "."): value for name, value in options.items()},
        }
        rows: list[dict[str, str | None]] = self._ask(asked)["rows"]
        return rows

    def _ask(self, request: Any) -> Described:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        assert line, f"the Java process ended: {tail(self._errors)}"
        answer = json.loads(line)
        if "error" in answer:
            raise Unreadable(answer["error"])
        return answer


def _base64(content: bytes | None) -> str | None:
    return None if content is None else b64encode(content).decode()


def _jars() -> Path:
    return fetch_jars(cache_directory(), "connect", _READERS)


def _compiled() -> Path:
    """Return the folder of the compiled program, made when it or what it uses has changed."""
    source = _HERE / "ConnectReader.java"
    digest = hashlib.sha256(f"{_READERS}{_COMPILER}".encode() + source.read_bytes()).hexdigest()
    builds = cache_directory() / "builds" / "connect"
    target = builds / digest[:16]
    if not target.exists():
        builds.mkdir(parents=True, exist_ok=True)
        # Made under another name and renamed when whole, as others may make the same.
        made = Path(tempfile.mkdtemp(dir=builds))
        [compiler] = fetch_jars(cache_directory(), "ecj", _COMPILER).glob("*.jar")
        # It doesn't know the asterisk of class paths.
        class_path = ":".join(map(str, sorted(_jars().glob("*.jar"))))
        options = ["-17", "-proc:none", "-failOnWarning", "-cp", class_path, "-d", made]
        subprocess.run(["java", "-jar", compiler, *options, source], check=True)
        with contextlib.suppress(OSError):
            made.rename(target)
        # Not all others: another clone with the same cache may be running one of them.
        for old in sorted(builds.iterdir(), key=lambda path: path.stat().st_mtime)[:-_KEPT]:
            shutil.rmtree(old, ignore_errors=True)
    return target
