"""Our Avro messages as a foreign converter of Kafka Connect reads them: AvroReader.java's side."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import subprocess
import tempfile
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any, NamedTuple

from firebird_cdc.demo.maven import fetch_jars
from firebird_cdc.demo.paths import cache_directory
from firebird_cdc.demo.processes import tail

_SOURCE = Path(__file__).with_name("AvroReader.java")
_READERS = (
    "io.apicurio:apicurio-registry-utils-converter:2.6.13.Final",
    # Apicurio's own 1.12.0 reads the doubles of an array as if they had 32 bits.
    "org.apache.avro:avro:1.12.1",
    "org.slf4j:slf4j-nop:2.0.6",
)
# Not javac: to run our tests, as to run Kafka, a Java without a compiler is enough.
_COMPILER = ("org.eclipse.jdt:ecj:3.38.0",)
_JAVA_OPTIONS = ("-Xmx200m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")


class Unreadable(Exception):
    """Java's words about what it can't read or write."""


class WrittenInJava(NamedTuple):
    """What AvroData makes of Connect data."""

    schema: Any
    avro: bytes


class AvroReader:
    """A Java process with Apicurio's AvroConverter. It reads ids as Confluent's does."""

    def __init__(self, errors: Path) -> None:
        self._errors = errors
        class_path = f"{_compiled()}:{_jars()}/*"
        with errors.open("wb") as log:
            self._process = subprocess.Popen(
                ["java", *_JAVA_OPTIONS, "-cp", class_path, "AvroReader"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                encoding="utf-8",
            )

    def end(self) -> None:
        """End the process, which must have nothing against that."""
        self._process.communicate(timeout=20)
        assert self._process.returncode == 0, tail(self._errors)

    def read(self, registry: str, topic: str, message: bytes) -> Any:
        """Return the Connect schema and payload of MESSAGE, by its schema in REGISTRY."""
        request = {"registry": registry, "topic": topic, "message": b64encode(message).decode()}
        return self._ask(request)["connect"]

    def write(self, schema: Any, payload: Any) -> WrittenInJava:
        """Return the Avro of PAYLOAD, in Connect's JSON like its SCHEMA."""
        answer = self._ask({"connect": {"schema": schema, "payload": payload}})
        return WrittenInJava(json.loads(answer["schema"]), b64decode(answer["avro"]))

    def _ask(self, request: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the Java process has ended:\n{tail(self._errors)}"
        answer = json.loads(line)
        if "error" in answer:
            raise Unreadable(answer["error"])
        return answer


def _jars() -> Path:
    return fetch_jars(cache_directory(), "avro-reader", _READERS)


def _compiled() -> Path:
    """Return the folder of the compiled program, made when it or what it uses has changed."""
    digest = hashlib.sha256(f"{_READERS}{_COMPILER}".encode() + _SOURCE.read_bytes()).hexdigest()
    builds = cache_directory() / "builds" / "avro-reader"
    target = builds / digest[:16]
    if not target.exists():
        shutil.rmtree(builds, ignore_errors=True)
        builds.mkdir(parents=True)
        # Made under another name and renamed when whole, as others may make the same.
        made = Path(tempfile.mkdtemp(dir=builds))
        [compiler] = fetch_jars(cache_directory(), "ecj", _COMPILER).glob("*.jar")
        # It doesn't know the asterisk of class paths.
        class_path = ":".join(map(str, sorted(_jars().glob("*.jar"))))
        options = ["-17", "-proc:none", "-failOnWarning", "-cp", class_path, "-d", made]
        subprocess.run(["java", "-jar", compiler, *options, _SOURCE], check=True)
        with contextlib.suppress(OSError):
            made.rename(target)
    return target
