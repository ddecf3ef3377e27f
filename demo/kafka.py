"""A real Apache Kafka broker on loopback: one KRaft node, from its Maven jars."""

from __future__ import annotations

import os
import shutil
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from firebird_cdc.demo.class_archive import ClassArchive
from firebird_cdc.demo.maven import Progress, fetch_jars
from firebird_cdc.demo.processes import Stack, await_condition, tail
from firebird_cdc.demo.service import (
    QUICK_JAVA,
    START_ATTEMPTS,
    TIMED_LOG,
    Service,
    find_java,
    free_port,
)
from firebird_cdc.errors import SetupError

VERSION_VARIABLE = "FIREBIRD_CDC_KAFKA"
"""Environment variable that names another version of Apache Kafka to be run."""

_VERSION = "4.1.0"
# It writes to standard error, which the stack keeps in a file.
_LOGGER = "org.slf4j:slf4j-simple:1.7.36"
_START_TIMEOUT_S = 90.0

# A small heap: this serves a demo and tests, not a load.
_JAVA_OPTIONS = ("-Xmx320m", *QUICK_JAVA, *TIMED_LOG)

# One node holds every role; topics of Kafka's own get one partition or few, as each costs files
# and start-up time. A broker that was killed can register again only when its old session has
# expired, after 9 s by default. Without changes of metadata it has nothing to write twice a second,
# which would be a third of what an idle broker costs.
_PROPERTIES = """\
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}{further}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}{further}
controller.listener.names=CONTROLLER
controller.quorum.voters=1@127.0.0.1:{controller_port}
log.dirs={data}
num.partitions=1
auto.create.topics.enable=true
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=2
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
num.network.threads=2
num.io.threads=2
background.threads=2
log.cleaner.dedupe.buffer.size=16777216
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
metadata.max.idle.interval.ms=0
"""


def fetch_kafka(cache: Path, progress: Progress | None = None) -> Path:
    """Fetch Apache Kafka from the Maven repository, once; return the folder of its jars."""
    version = os.environ.get(VERSION_VARIABLE, _VERSION)
    return fetch_jars(cache, "kafka", (f"org.apache.kafka:kafka_2.13:{version}", _LOGGER), progress)


def fetch_spark_kafka(cache: Path, progress: Progress | None = None) -> list[Path]:
    """Fetch the jars of Spark's Kafka source, once: its repository lacks what they name further."""
    from firebird_cdc.journal.replay.audit.kafka.topic_reader import PACKAGES

    alone = [f"{package}:jar" for package in PACKAGES]
    return sorted(fetch_jars(cache, "spark-kafka", alone, progress).glob("*.jar"))


def archive_classes(jars: Path) -> None:
    """Have brokers of JARS share an archive of classes from now on; one leaves it behind, once."""

    def leave(part: Path, option: str) -> None:
        broker = KafkaBroker(part / "broker", jars)
        broker.java_options = (*_JAVA_OPTIONS, option)
        with broker:
            pass
        shutil.rmtree(broker.directory)

    ClassArchive(jars.parent, jars).make(leave)


class KafkaBroker(Service):
    """A running broker; leaving the context stops it. Its data outlive stop, kill and start.

    directory: holds data/, server.properties and kafka.log. jars: what fetch_kafka returned.
    port: 0 takes a free one, and keeps it. stack: as of ``Service``. listeners: ports of further
    ones by their names, whose protocols and keys ``properties`` tell, like anything else that is
    to be otherwise. Raises SetupError with the end of the server's log if it doesn't come up.
    """

    patience_s = 20

    def __init__(
        self,
        directory: Path,
        jars: Path,
        port: int = 0,
        stack: Stack | None = None,
        *,
        listeners: Mapping[str, int] | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(directory, port, stack)
        self.log_path = self.directory / "kafka.log"
        self._jars = jars
        self.java_options = (*_JAVA_OPTIONS, *ClassArchive(jars.parent, jars).options)
        self._listeners = listeners or {}
        self._properties = properties or {}
        self._configuration = self.directory / "server.properties"

    @property
    def bootstrap(self) -> str:
        """The address for clients, "127.0.0.1:PORT"."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the broker, for the first time or again, and wait until it answers."""
        if self._process is not None and self._process.poll() is None:
            return
        for attempt in range(1, START_ATTEMPTS + 1):
            fresh = not self._configuration.exists()
            if fresh:
                self._format()
            try:
                self._launch()
                return
            except SetupError:
                taken = "Address already in use" in self._complaints()
                if not (fresh and taken) or self._fixed_port or attempt == START_ATTEMPTS:
                    raise
                self._configuration.unlink()

    def forget(self) -> None:
        """Lose everything while stopped: the next start begins anew, under the same address."""
        self._configuration.unlink()
        self._fixed_port = True

    def _java(self, main: str, *arguments: str) -> list[str]:
        classpath = f"{self._jars}{os.sep}*"
        return [find_java(), *self.java_options, "-cp", classpath, main, *arguments]

    def _format(self) -> None:
        if not self._fixed_port:
            self.port = free_port()
        data = self.directory / "data"
        shutil.rmtree(data, ignore_errors=True)
        further = "".join(f",{name}://127.0.0.1:{port}" for name, port in self._listeners.items())
        text = _PROPERTIES.format(
            port=self.port, controller_port=free_port(), data=data, further=further
        )
        text += "".join(f"{name}={value}\n" for name, value in self._properties.items())
        draft = self._configuration.with_suffix(".new")
        draft.write_text(text, encoding="utf-8")
        cluster = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        # An id may begin with "-": it has to stand in one word with its option.
        argv = self._java(
            "kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", f"--config={draft}"
        )
        self._stack.run(f"{self._log_name(self.log_path)}-format", argv, timeout_s=_START_TIMEOUT_S)
        draft.rename(self._configuration)

    def _complaints(self) -> str:
        """The errors at the end of the server's log: its orderly shutdown would bury them."""
        lines = tail(self.log_path, 400).splitlines()
        errors = [line for line in lines if " ERROR " in line or "Exception: " in line]
        return "\n".join(errors[-8:] or lines[-20:])

    def _launch(self) -> None:
        argv = self._java("kafka.Kafka", str(self._configuration))
        self._process = process = self._stack.start(self._log_name(self.log_path), argv)
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

        def answers() -> bool:
            if process.poll() is not None:
                raise SetupError(
                    f"the Kafka broker ended with exit code {process.returncode} while starting"
                )
            try:
                return bool(admin.list_topics(timeout=1).brokers)
            except KafkaException:
                return False

        try:
            await_condition(f"the Kafka broker at {self.bootstrap}", answers, _START_TIMEOUT_S)
        except SetupError as error:
            self.kill()
            raise SetupError(
                f"{error}; from its log, {self.log_path}:\n{self._complaints()}"
            ) from None
