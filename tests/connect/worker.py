"""A real worker of Kafka Connect with Debezium's JDBC sink, as a user starts it.

Its settings are Kafka's defaults: JSON with schemas for keys and values, which every sample has,
and SimpleHeaderConverter for headers. What differs is said in ``_PROPERTIES``.
"""

from __future__ import annotations

import json
import shutil
import tarfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from broker_topics import last_readable

from firebird_cdc.demo.maven import Progress, fetch_jars
from firebird_cdc.demo.paths import made_once
from firebird_cdc.demo.processes import Stack, await_condition, tail
from firebird_cdc.demo.service import QUICK_JAVA, TIMED_LOG, Service, find_java
from firebird_cdc.errors import SetupError

# The part of Kafka's distribution that is a worker, and its own plugins.
_WORKER = (
    "org.apache.kafka:connect-runtime:4.1.0",
    "org.apache.kafka:connect-json:4.1.0",
    "org.apache.kafka:connect-transforms:4.1.0",
    "org.slf4j:slf4j-simple:1.7.36",
)
# As Debezium has it for download, with the drivers of the databases.
_SINK = ("io.debezium:debezium-connector-jdbc:3.3.1.Final:tar.gz:plugin",)
# Reads the messages of Confluent's serialiser, and ours, with their schemas from a registry.
_AVRO = (
    "io.apicurio:apicurio-registry-utils-converter:2.6.13.Final",
    # Apicurio's own 1.12.0 reads the doubles of an array as if they had 32 bits.
    "org.apache.avro:avro:1.12.1",
)
AVRO_CONVERTER = "io.apicurio.registry.utils.converter.AvroConverter"

_START_TIMEOUT_S = 90.0
_PATIENCE_S = 60.0
_JAVA_OPTIONS = (
    # What a clock shows in Firebird must not depend on where the worker runs.
    "-Duser.timezone=Asia/Tokyo",
    "-Xmx400m",
    *QUICK_JAVA,
    *TIMED_LOG,
)

# isolation.level: the one that docs/ tells every user to set. The rest is for quick tests: offsets
# that tell soon how far a sink has come, topics that are seen soon, plugins found by what they
# declare rather than by a look into each class of each jar.
_PROPERTIES = """\
bootstrap.servers={bootstrap}
key.converter=org.apache.kafka.connect.json.JsonConverter
value.converter=org.apache.kafka.connect.json.JsonConverter
plugin.path={plugins}
consumer.isolation.level=read_committed
listeners=http://127.0.0.1:{port}
offset.storage.file.filename={offsets}
offset.flush.interval.ms=200
consumer.metadata.max.age.ms=1000
plugin.discovery=service_load
"""


def fetch_worker(cache: Path, progress: Progress | None = None) -> tuple[Path, Path]:
    """Fetch the worker and its plugins from the Maven repository, once.

    Returns the folder of the worker's jars, and that of the plugins, each in a folder of its own.
    """
    [archive] = fetch_jars(cache, "jdbc-sink", _SINK, progress).glob("*.tar.gz")

    def unpack(part: Path) -> None:
        with tarfile.open(archive) as packed:
            packed.extractall(part, filter="data")
        avro = shutil.copytree(fetch_jars(cache, "avro-plugin", _AVRO, progress), part / "avro")
        # Apicurio's doesn't declare it: as connect-plugin-path sync-manifests would do.
        with zipfile.ZipFile(avro / "manifest.jar", "w") as manifest:
            manifest.writestr(
                "META-INF/services/org.apache.kafka.connect.storage.Converter", AVRO_CONVERTER
            )

    plugins = made_once(archive.parent / "connect-plugins", unpack)
    return fetch_jars(cache, "worker", _WORKER, progress), plugins


class Worker(Service):
    """A running worker, by connect-standalone; leaving the context stops it.

    directory: holds worker.properties and worker.log. bootstrap: of the broker. program: what
    fetch_worker returned. stack: as of ``Service``.
    Raises SetupError with the end of its log if it doesn't come up.
    """

    patience_s = 20

    def __init__(
        self,
        directory: Path,
        bootstrap: str,
        program: tuple[Path, Path],
        stack: Stack | None = None,
    ) -> None:
        super().__init__(directory, 0, stack)
        self.bootstrap = bootstrap
        self.log_path = self.directory / "worker.log"
        self._jars, self._plugins = program

    def start(self) -> None:
        """Start it, for the first time or again, and wait until it answers."""
        self._launch_on_a_port(self._launch)

    def create(self, name: str, options: Mapping[str, str]) -> None:
        """Create a connector. Raises SetupError with what the worker says against it."""
        self._ask("POST", "/connectors", {"name": name, "config": dict(options)})

    def delete(self, name: str) -> None:
        """Delete a connector, if there is one of that name, with its tasks."""
        if name in self._ask("GET", "/connectors"):
            self._ask("DELETE", f"/connectors/{name}")

    def failure(self, name: str) -> str | None:
        """Return the trace with which a connector or one of its tasks has failed, if one has."""
        status = self._ask("GET", f"/connectors/{name}/status")
        for part in (status["connector"], *status["tasks"]):
            if part["state"] == "FAILED":
                return str(part["trace"])
        return None

    def await_caught_up(self, name: str, topics: Sequence[str]) -> None:
        """Wait until a sink has written all that can be read of TOPICS now.

        AssertionError with the trace if it fails, or with the end of the worker's log.
        """
        due = last_readable(self.bootstrap, topics)

        def done() -> bool:
            trace = self.failure(name)
            assert trace is None, f"{name} has failed:\n{trace}"
            offsets = self._ask("GET", f"/connectors/{name}/offsets")["offsets"]
            come = {
                (it["partition"]["kafka_topic"], it["partition"]["kafka_partition"]): it["offset"][
                    "kafka_offset"
                ]
                for it in offsets
            }
            return all(come.get(place, 0) > offset for place, offset in due.items())

        try:
            await_condition(f"{name} to write {due}", done, _PATIENCE_S)
        except SetupError as error:
            raise AssertionError(f"{error}; the worker's log:\n{tail(self.log_path, 40)}") from None

    def _ask(self, method: str, path: str, content: Any = None) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            None if content is None else json.dumps(content).encode(),
            {"Content-Type": "application/json"},
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=_PATIENCE_S) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            said = error.read().decode(errors="replace")
            raise SetupError(f"{method} {path}: HTTP {error.code}: {said}") from None
        return json.loads(text) if text else None

    def _launch(self) -> None:
        properties = self.directory / "worker.properties"
        properties.write_text(
            _PROPERTIES.format(
                bootstrap=self.bootstrap,
                plugins=self._plugins,
                port=self.port,
                offsets=self.directory / "offsets",
            )
        )
        main = "org.apache.kafka.connect.cli.ConnectStandalone"
        argv = [find_java(), *_JAVA_OPTIONS, "-cp", f"{self._jars}/*", main, str(properties)]
        self._process = self._stack.start(self._log_name(self.log_path), argv)

        def answers() -> bool:
            try:
                self._ask("GET", "/connectors")
            except (OSError, SetupError):
                return False
            return True

        name = f"the Connect worker on port {self.port}"
        self._await_start(name, answers, _START_TIMEOUT_S, self.log_path)
