"""Turns ``kafka.producer.*`` options, named as the Java client names them, into librdkafka's.

A property of the Java client ends in one of four ways: librdkafka knows it under the same
name; it has a nearest property there; it is used by the shipper itself; or it has no effect
here, which a warning says. What cannot be honoured without weakening security or the
delivery promise is an error.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from firebird_cdc.config import librdkafka
from firebird_cdc.config.options import INT_MAX
from firebird_cdc.config.secrets import holds_login, is_secret
from firebird_cdc.config.values import Entry, ValueProblem, parse_boolean, parse_integer

PREFIX: Final = "kafka.producer."

# Used by the shipper itself; not for librdkafka.
CONSUMED: Final = ("max.block.ms", "close.timeout.ms")

# Java properties of another name or unit: name there -> (name here, what happens to the value).
MAPPED: Final = {
    "buffer.memory": ("queue.buffering.max.kbytes", "bytes become KiB, rounded up"),
    "compression.gzip.level": ("compression.level", "if compression.type is gzip"),
    "compression.lz4.level": ("compression.level", "if compression.type is lz4"),
    "compression.zstd.level": ("compression.level", "if compression.type is zstd"),
    "max.request.size": ("message.max.bytes", ""),
    "partitioner.class": ("partitioner", "Java's own partitioners only"),
    "receive.buffer.bytes": ("socket.receive.buffer.bytes", "-1 becomes 0"),
    "sasl.jaas.config": ("sasl.username, sasl.password", "for PLAIN and SCRAM"),
    "sasl.oauthbearer.assertion.template.file": (
        "sasl.oauthbearer.assertion.jwt.template.file",
        "",
    ),
    "send.buffer.bytes": ("socket.send.buffer.bytes", "-1 becomes 0"),
    "ssl.keystore.certificate.chain": ("ssl.certificate.pem", ""),
    "ssl.keystore.key": ("ssl.key.pem", ""),
    "ssl.keystore.type": ("ssl.keystore.location", "PKCS12 is read directly; JKS is refused"),
    "ssl.truststore.certificates": ("ssl.ca.pem", ""),
    "ssl.truststore.location": ("ssl.ca.location", "a PEM file; other forms are refused"),
    "ssl.truststore.type": ("ssl.ca.location", "PEM"),
}

_CONVERTERS = "keys and values are written by key.converter and value.converter"
_JVM = "it belongs to the Java client"
_OLD = "no Java client since Kafka 1.0 knows it either"
_LOGIN = "the Kafka client fetches and renews tokens at times of its own"
_BROKERS = "brokers check tokens, producers don't"

# Java properties without any effect here: a warning says why.
WITHOUT_EFFECT: Final = {
    "auto.include.jmx.reporter": _JVM,
    "block.on.buffer.full": _OLD,
    "config.providers": "the file's values are taken as they are",
    "interceptor.classes": _JVM,
    "key.serializer": _CONVERTERS,
    "metadata.fetch.timeout.ms": _OLD,
    "metadata.max.idle.ms": _JVM,
    "metric.reporters": _JVM,
    "metrics.num.samples": _JVM,
    "metrics.recording.level": _JVM,
    "metrics.sample.window.ms": _JVM,
    "partitioner.adaptive.partitioning.enable": _JVM,
    "partitioner.availability.timeout.ms": _JVM,
    "sasl.client.callback.handler.class": _JVM,
    "sasl.kerberos.ticket.renew.jitter": _JVM,
    "sasl.kerberos.ticket.renew.window.factor": _JVM,
    "sasl.login.callback.handler.class": _JVM,
    "sasl.login.class": _JVM,
    "sasl.login.connect.timeout.ms": _LOGIN,
    "sasl.login.read.timeout.ms": _LOGIN,
    "sasl.login.refresh.buffer.seconds": _LOGIN,
    "sasl.login.refresh.min.period.seconds": _LOGIN,
    "sasl.login.refresh.window.factor": _LOGIN,
    "sasl.login.refresh.window.jitter": _LOGIN,
    "sasl.login.retry.backoff.max.ms": _LOGIN,
    "sasl.login.retry.backoff.ms": _LOGIN,
    "sasl.oauthbearer.clock.skew.seconds": _BROKERS,
    "sasl.oauthbearer.expected.audience": _BROKERS,
    "sasl.oauthbearer.expected.issuer": _BROKERS,
    "sasl.oauthbearer.header.urlencode": _JVM,
    "sasl.oauthbearer.jwks.endpoint.refresh.ms": _BROKERS,
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms": _BROKERS,
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms": _BROKERS,
    "sasl.oauthbearer.jwks.endpoint.url": _BROKERS,
    "sasl.oauthbearer.jwt.retriever.class": _JVM,
    "sasl.oauthbearer.jwt.validator.class": _JVM,
    "sasl.oauthbearer.scope.claim.name": _BROKERS,
    "security.providers": _JVM,
    "socket.connection.setup.timeout.max.ms": "socket.connection.setup.timeout.ms is not doubled",
    "ssl.enabled.protocols": "OpenSSL's own choice is used",
    "ssl.engine.factory.class": _JVM,
    "ssl.keymanager.algorithm": _JVM,
    "ssl.protocol": "OpenSSL's own choice is used",
    "ssl.provider": _JVM,
    "ssl.secure.random.implementation": _JVM,
    "ssl.trustmanager.algorithm": _JVM,
    "ssl.truststore.password": "certificates in PEM form have no password",
    "timeout.ms": f"{_OLD}; the longest wait for an answer is kafka.producer.request.timeout.ms",
    "value.serializer": _CONVERTERS,
}

# Properties that would break what the shipper relies on.
REFUSED: Final = {
    "delivery.report.only.error": "the shipper needs a report for every message",
    "dr_cb": "the shipper needs it itself",
    "enabled_events": "the shipper needs it itself",
    "group.id": "it is a consumer's property",
    "internal.termination.signal": "the shipper needs it itself",
    "interceptors": "the shipper needs it itself",
    "log.queue": "the shipper needs it itself",
    "opaque": "the shipper needs it itself",
    "partitioner.ignore.keys": "the history of a row must stay in one partition",
    "queuing.strategy": "events must leave in their order",
    "transaction.two.phase.commit.enable": "the shipper ends its transactions itself",
}

_JAVA_PARTITIONERS: Final = {
    "org.apache.kafka.clients.producer.internals.DefaultPartitioner": "murmur2_random",
}

# Defaults of ours where librdkafka's differ from the manual's or the Java client's, or are not
# good for what is sent here. The partitioner keeps a row in the partition where the Java client
# would put it. Events repeat themselves, schemas most of all, and compressing them costs less than
# sending them as they are: of 3.6 kB, the bare client sends 3 to 8 times as many with lz4, and
# twice to three times as many of 600 bytes. linger.ms stays as it is: the shipper ends that wait
# where nothing more is to come (journal.producer).
_COMPRESSION = "lz4"
_DEFAULTS: Final = {
    "acks": "all",
    "compression.type": _COMPRESSION,
    "enable.idempotence": "true",
    "delivery.timeout.ms": "120000",
    "partitioner": "murmur2_random",
}
_REQUEST_TIMEOUT_MS = 30_000
_LINGER_MS = 5
_TRANSACTION_TIMEOUT_MS = 60_000
# What a broker allows unless its transaction.max.timeout.ms says otherwise.
_BROKER_TRANSACTION_LIMIT_MS = 900_000
_IDEMPOTENT_IN_FLIGHT = 5
_RETRY_BACKOFF_MAX_MS = 1000
_MAX_MESSAGE_BYTES = "1000000"
"""librdkafka's own default of message.max.bytes."""


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """``properties`` for ``confluent_kafka.Producer``.

    ``origins``: for each property that the file sets, ``path:line: option``.
    """

    properties: dict[str, str]
    origins: dict[str, str]

    @classmethod
    def from_entries(
        cls,
        entries: Mapping[str, Entry],
        path: Path,
        problems: list[str],
        warnings: list[str],
    ) -> ProducerSettings:
        """Map ENTRIES, keyed by property name; append what is wrong to PROBLEMS and WARNINGS."""
        mapping = _Mapping(path, entries, problems, warnings)
        for name, entry in entries.items():
            mapping.take(name, entry)
        mapping.check_together()
        return cls(mapping.properties, mapping.origins)


def max_message_bytes(producer: Mapping[str, str]) -> int:
    """Return the largest message that a PRODUCER with these properties takes, in bytes of key and
    value."""
    return int(producer.get("message.max.bytes", _MAX_MESSAGE_BYTES))


def narrowed(value: str, low: int, high: int, warn: Callable[[str], None]) -> int:
    """Return the number in VALUE, or the nearest from LOW to HIGH, which WARN is told of.

    Raises ValueProblem if no client takes it.
    """
    number = parse_integer(value, min(low, 0), 2**63 - 1)
    nearest = min(max(number, low), high)
    if nearest != number:
        warn(f"is {number}; the Kafka client takes {low} to {high}, so {nearest} is used")
    return nearest


def choice_of(value: str, allowed: Sequence[str]) -> str:
    """Return the one of ALLOWED that VALUE is, in any case; raises ValueProblem."""
    matching = [choice for choice in allowed if choice.lower() == value.lower()]
    if not matching:
        raise ValueProblem(f"allowed: {', '.join(allowed)}")
    return matching[0]


class _Mapping:
    """The properties gathered so far, and where each came from."""

    def __init__(
        self, path: Path, given: Mapping[str, Entry], problems: list[str], warnings: list[str]
    ) -> None:
        self.path = path
        self.given = given  # every property of the file, by its name there
        self.problems = problems
        self.warnings = warnings
        self.properties = dict(_DEFAULTS)
        self.entries: dict[str, Entry] = {}

    @property
    def origins(self) -> dict[str, str]:
        return {name: self._place(entry) for name, entry in self.entries.items()}

    # -- one property

    def take(self, name: str, entry: Entry) -> None:
        """Map one property of the file."""
        if name in CONSUMED:
            return
        value = ",".join(entry.value) if isinstance(entry.value, tuple) else entry.value or ""
        name = librdkafka.CANONICAL.get(name, name)
        if name in REFUSED and value.lower() == "false":
            self._warn(entry, "has no effect: it cannot be otherwise here")
        elif name in REFUSED:
            self._refuse(entry, f"cannot be set: {REFUSED[name]}")
        elif name in WITHOUT_EFFECT or name.startswith("config.providers."):
            why = WITHOUT_EFFECT.get(name, WITHOUT_EFFECT["config.providers"])
            self._warn(entry, f"has no effect: {why}")
        elif name in _SPECIAL:
            _SPECIAL[name](self, entry, value)
        elif name in librdkafka.PROPERTIES:
            self._set(name, value, entry)
        else:
            self._refuse(entry, _unknown(name))

    def _place(self, entry: Entry) -> str:
        return f"{entry.place(self.path)}: {entry.key}"

    def _refuse(self, entry: Entry, what: str) -> None:
        self.problems.append(f"{self._place(entry)} {what}")

    def _warn(self, entry: Entry, what: str) -> None:
        self.warnings.append(f"{self._place(entry)} {what}")

    def _set(self, name: str, value: str, entry: Entry) -> None:
        """Check VALUE for the librdkafka property NAME and keep it."""
        if name in self.entries:
            other = self.entries[name]
            self._refuse(
                entry,
                f"sets the same property as {other.key} ({other.place(self.path)});"
                " remove one of the two",
            )
            return
        try:
            self.properties[name] = self._checked(name, value, entry)
        except ValueProblem as problem:
            self._refuse(entry, f"is {_shown(entry.key, value)}; {problem}")
        self.entries[name] = entry

    def _checked(self, name: str, value: str, entry: Entry) -> str:
        if name in librdkafka.INTEGERS:
            low, high = librdkafka.INTEGERS[name]
            if name not in librdkafka.WIDER_IN_JAVA:
                return str(parse_integer(value, low, high))
            return str(narrowed(value, low, high, partial(self._warn, entry)))
        if name in librdkafka.CHOICES:
            return choice_of(value, librdkafka.CHOICES[name])
        if name in librdkafka.BOOLEANS:
            return "true" if parse_boolean(value) else "false"
        if not value.strip():
            raise ValueProblem("a value is missing")
        if "\0" in value:
            raise ValueProblem("a value cannot hold a zero byte")
        return value

    # -- Java properties that need more than a look into a table

    def _bootstrap_servers(self, entry: Entry, value: str) -> None:
        servers = [server.strip() for server in value.split(",") if server.strip()]
        wrong = [server for server in servers if not _is_server(server)]
        if wrong or not servers:
            self._refuse(
                entry,
                f"is {_shown(entry.key, value)}; allowed: host1:port1,host2:port2 with ports"
                " from 1 to 65535, an IPv6 address in brackets",
            )
        else:
            self._set("bootstrap.servers", ",".join(servers), entry)

    def _buffer_memory(self, entry: Entry, value: str) -> None:
        if (number := self._number(entry, value, 0)) is not None:
            kib = min(max(-(-number // 1024), 1), INT_MAX)
            self._set("queue.buffering.max.kbytes", str(kib), entry)

    def _max_request_size(self, entry: Entry, value: str) -> None:
        self._set("message.max.bytes", value, entry)

    def _send_buffer(self, entry: Entry, value: str) -> None:
        self._set("socket.send.buffer.bytes", "0" if value == "-1" else value, entry)

    def _receive_buffer(self, entry: Entry, value: str) -> None:
        self._set("socket.receive.buffer.bytes", "0" if value == "-1" else value, entry)

    def _idle(self, entry: Entry, value: str) -> None:
        self._set("connections.max.idle.ms", "0" if value == "-1" else value, entry)

    def _compression_level(self, entry: Entry, value: str) -> None:
        algorithm = entry.key.removeprefix(PREFIX).split(".")[1]
        number = self._number(entry, value, -(2**31), INT_MAX)
        if number is None:
            return
        low, high = librdkafka.INTEGERS["compression.level"]
        if self._compression() == algorithm:
            nearest = min(max(number, low), high)
            if nearest != number:
                self._warn(
                    entry,
                    f"is {number}; the Kafka client takes {low} to {high}, so {nearest} is used",
                )
            self._set("compression.level", str(nearest), entry)

    def _dns_lookup(self, entry: Entry, value: str) -> None:
        if value == "default":
            self._warn(
                entry, "is 'default', which the Kafka client no longer has; use_all_dns_ips is used"
            )
            value = "use_all_dns_ips"
        self._set("client.dns.lookup", value, entry)

    def _partitioner_class(self, entry: Entry, value: str) -> None:
        partitioner = _JAVA_PARTITIONERS.get(value)
        if partitioner is None:
            self._refuse(
                entry,
                f"is {_shown(entry.key, value)}; this class cannot run here or would scatter the"
                f" history of a row: leave it out, or set {PREFIX}partitioner to one of"
                f" {', '.join(librdkafka.CHOICES['partitioner'])}",
            )
        else:
            self._set("partitioner", partitioner, entry)

    def _partitioner(self, entry: Entry, value: str) -> None:
        self._set("partitioner", value, entry)
        if value == "random":
            self._warn(
                entry,
                "is random: events of one row get into several partitions, and"
                " readers may see them in another order",
            )

    def _jaas(self, entry: Entry, value: str) -> None:
        """Take user and password from the login modules that need nothing else."""
        module = re.match(r"\s*[\w.$]*\.(Plain|Scram)LoginModule\s+required\b", value)
        fields = dict(re.findall(r"""(\w+)\s*=\s*["']([^"']*)["']""", value))
        if module and fields.get("username") and fields.get("password"):
            self._set("sasl.username", fields["username"], entry)
            self._set("sasl.password", fields["password"], entry)
            return
        self._refuse(
            entry,
            "can be taken over only from PlainLoginModule and ScramLoginModule with"
            f' username="..." and password="..."; for others set {PREFIX}sasl.mechanism and the'
            f" properties {PREFIX}sasl.kerberos.* or {PREFIX}sasl.oauthbearer.*",
        )

    def _keystore_type(self, entry: Entry, value: str) -> None:
        if value.upper() not in ("PKCS12", "PEM"):
            self._refuse(entry, f"is {_shown(entry.key, value)}; {_KEYSTORE_HELP}")

    def _keystore(self, entry: Entry, value: str) -> None:
        if self._store_type("ssl.keystore.type", value) == "PEM":
            self._set("ssl.certificate.location", value, entry)
            if "ssl.key.location" not in self.given:
                self._set("ssl.key.location", value, entry)
        elif self._store_type("ssl.keystore.type", value) == "PKCS12":
            self._set("ssl.keystore.location", value, entry)
            if "ssl.keystore.password" not in self.given:
                self._refuse(entry, f"needs {PREFIX}ssl.keystore.password")
        elif "ssl.keystore.type" not in self.given:
            self._refuse(entry, f"is {value!r}; {_KEYSTORE_HELP}")

    def _keystore_key(self, entry: Entry, value: str) -> None:
        self._set("ssl.key.pem", value, entry)

    def _keystore_chain(self, entry: Entry, value: str) -> None:
        self._set("ssl.certificate.pem", value, entry)

    def _truststore_type(self, entry: Entry, value: str) -> None:
        if value.upper() != "PEM":
            self._refuse(entry, f"is {_shown(entry.key, value)}; {_TRUSTSTORE_HELP}")

    def _truststore(self, entry: Entry, value: str) -> None:
        if self._store_type("ssl.truststore.type", value) == "PEM":
            self._set("ssl.ca.location", value, entry)
        elif "ssl.truststore.type" not in self.given:
            self._refuse(entry, f"is {value!r}; {_TRUSTSTORE_HELP}")

    def _truststore_certificates(self, entry: Entry, value: str) -> None:
        self._set("ssl.ca.pem", value, entry)

    def _identification(self, entry: Entry, value: str) -> None:
        self._set("ssl.endpoint.identification.algorithm", value or "none", entry)

    def _assertion_template(self, entry: Entry, value: str) -> None:
        self._set("sasl.oauthbearer.assertion.jwt.template.file", value, entry)

    def _store_type(self, option: str, location: str) -> str:
        given = self.given.get(option)
        if given is not None and isinstance(given.value, str):
            return given.value.upper()
        suffix = Path(location).suffix.lower()
        if suffix in (".pem", ".crt", ".cer", ".key"):
            return "PEM"
        return "JKS" if suffix in (".jks", ".keystore", ".truststore") else "PKCS12"

    def _number(self, entry: Entry, value: str, low: int, high: int = 2**63 - 1) -> int | None:
        try:
            return parse_integer(value, low, high)
        except ValueProblem as problem:
            self._refuse(entry, f"is {_shown(entry.key, value)}; {problem}")
            return None

    def _compression(self) -> str:
        for name in ("compression.type", "compression.codec"):
            if name in self.given and isinstance(self.given[name].value, str):
                return str(self.given[name].value).lower()
        return _COMPRESSION

    # -- the properties together

    def check_together(self) -> None:
        """Apply the rules between properties, the Java client's and librdkafka's."""
        transactional = "transactional.id" in self.properties
        self._check_idempotence(transactional)
        self._check_delivery_timeout()
        if transactional:
            self._check_transaction_timeout()
        self._check_backoffs()
        self._check_sasl()

    def _integer(self, name: str, default: int) -> int:
        """Return the checked value of NAME; the default if it was refused."""
        try:
            return int(self.properties.get(name, default))
        except ValueError:
            return default

    def _check_idempotence(self, transactional: bool) -> None:
        switch = self.entries.get("enable.idempotence")
        if self.properties["enable.idempotence"] == "false":
            assert switch is not None
            if transactional:
                self._refuse(
                    switch,
                    f"is false; {PREFIX}transactional.id needs it true: remove one of the two",
                )
            elif self._integer("max.in.flight.requests.per.connection", 0) != 1:
                self._warn(
                    switch,
                    "is false: a repeated send may give duplicates and change the order of events;"
                    f" set {PREFIX}max.in.flight.requests.per.connection to 1 to keep the order",
                )
            return
        asked = switch is not None or transactional
        limits = (
            ("acks", "all", self.properties["acks"] in ("all", "-1")),
            ("retries", "1", self._integer("retries", INT_MAX) > 0),
            (
                "max.in.flight.requests.per.connection",
                str(_IDEMPOTENT_IN_FLIGHT),
                self._integer("max.in.flight.requests.per.connection", 1) <= _IDEMPOTENT_IN_FLIGHT,
            ),
        )
        for name, needed, fits in limits:
            if fits:
                continue
            entry = self.entries[name]
            what = f"is {self.properties[name]}; delivery without duplicates needs {needed}"
            if asked:
                self._refuse(entry, f"{what} (enable.idempotence or transactional.id is set)")
            else:
                self._warn(
                    entry,
                    f"{what}, which is used; to have your value, set"
                    f" {PREFIX}enable.idempotence: false",
                )
                self.properties[name] = needed

    def _check_delivery_timeout(self) -> None:
        least = self._integer("request.timeout.ms", _REQUEST_TIMEOUT_MS) + self._integer(
            "linger.ms", _LINGER_MS
        )
        if self._integer("delivery.timeout.ms", least) >= least:
            return
        entry = self.entries.get("delivery.timeout.ms")
        if entry is None:
            self.properties["delivery.timeout.ms"] = str(min(least, INT_MAX))
            return
        self._refuse(
            entry,
            f"is {self.properties['delivery.timeout.ms']}; it must be at least request.timeout.ms"
            f" + linger.ms, which is {least}",
        )

    def _check_transaction_timeout(self) -> None:
        """Keep delivery within the transaction: librdkafka refuses anything else."""
        delivery = self._integer("delivery.timeout.ms", 0)
        if "transaction.timeout.ms" in self.entries:
            limit = self._integer("transaction.timeout.ms", _TRANSACTION_TIMEOUT_MS)
        else:
            limit = min(max(_TRANSACTION_TIMEOUT_MS, delivery), _BROKER_TRANSACTION_LIMIT_MS)
            self.properties["transaction.timeout.ms"] = str(limit)
        if delivery > limit:
            if entry := self.entries.get("delivery.timeout.ms"):
                self._warn(
                    entry,
                    f"is {delivery}; a message cannot outlive its transaction, so {limit}"
                    f" is used ({PREFIX}transaction.timeout.ms)",
                )
            self.properties["delivery.timeout.ms"] = str(limit)
        if (entry := self.entries.get("socket.timeout.ms")) and self._integer(
            "socket.timeout.ms", 0
        ) > limit - 100:
            self._refuse(
                entry,
                f"is {self.properties['socket.timeout.ms']}; with {PREFIX}transactional.id it must"
                f" be at least 100 below transaction.timeout.ms, which is {limit}",
            )

    def _check_backoffs(self) -> None:
        for base, ceiling, default in (
            ("retry.backoff.ms", "retry.backoff.max.ms", _RETRY_BACKOFF_MAX_MS),
            ("reconnect.backoff.ms", "reconnect.backoff.max.ms", 10_000),
        ):
            pause = self._integer(base, 0)
            if pause > self._integer(ceiling, default):
                if entry := self.entries.get(ceiling):
                    self._warn(
                        entry, f"is {self.properties[ceiling]}, less than {base}; {pause} is used"
                    )
                self.properties[ceiling] = str(pause)

    def _check_sasl(self) -> None:
        protocol = self.properties.get("security.protocol", "plaintext")
        mechanism = self.properties.get("sasl.mechanism", "GSSAPI").upper()
        if not protocol.startswith("sasl_") or not re.match("PLAIN$|SCRAM-", mechanism):
            return
        missing = [n for n in ("sasl.username", "sasl.password") if n not in self.properties]
        if missing and "sasl.jaas.config" not in self.given:
            entry = self.entries["sasl.mechanism"]
            self._refuse(
                entry, f"is {mechanism}; it needs {' and '.join(PREFIX + n for n in missing)}"
            )


_KEYSTORE_HELP: Final = (
    "a Java key store cannot be read here. Convert it: keytool -importkeystore -srckeystore FILE"
    f" -destkeystore FILE.p12 -deststoretype PKCS12, then set {PREFIX}ssl.keystore.location to"
    f" FILE.p12 and {PREFIX}ssl.keystore.type to PKCS12"
)
_TRUSTSTORE_HELP: Final = (
    "a Java trust store cannot be read here. Write its certificates to a PEM file: keytool -list"
    f" -rfc -keystore FILE > ca.pem, then set {PREFIX}ssl.ca.location to that file instead"
)

_SPECIAL: Final[Mapping[str, Callable[[_Mapping, Entry, str], None]]] = {
    "bootstrap.servers": _Mapping._bootstrap_servers,
    "buffer.memory": _Mapping._buffer_memory,
    "client.dns.lookup": _Mapping._dns_lookup,
    "compression.gzip.level": _Mapping._compression_level,
    "compression.lz4.level": _Mapping._compression_level,
    "compression.zstd.level": _Mapping._compression_level,
    "connections.max.idle.ms": _Mapping._idle,
    "max.request.size": _Mapping._max_request_size,
    "partitioner": _Mapping._partitioner,
    "partitioner.class": _Mapping._partitioner_class,
    "receive.buffer.bytes": _Mapping._receive_buffer,
    "sasl.jaas.config": _Mapping._jaas,
    "sasl.oauthbearer.assertion.template.file": _Mapping._assertion_template,
    "send.buffer.bytes": _Mapping._send_buffer,
    "ssl.endpoint.identification.algorithm": _Mapping._identification,
    "ssl.keystore.certificate.chain": _Mapping._keystore_chain,
    "ssl.keystore.key": _Mapping._keystore_key,
    "ssl.keystore.location": _Mapping._keystore,
    "ssl.keystore.type": _Mapping._keystore_type,
    "ssl.truststore.certificates": _Mapping._truststore_certificates,
    "ssl.truststore.location": _Mapping._truststore,
    "ssl.truststore.type": _Mapping._truststore_type,
}


def _is_server(text: str) -> bool:
    match = re.fullmatch(
        r"(?:[A-Za-z_]+://)?(?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.%]+\]):([0-9]{1,5})", text
    )
    return match is not None and 1 <= int(match[1]) <= 65535


def _shown(key: str, value: str) -> str:
    if is_secret(key) or holds_login(value):
        return "(not shown)"
    return repr(value if len(value) <= 200 else value[:199] + "…")


def _unknown(name: str) -> str:
    known = [*librdkafka.PROPERTIES, *librdkafka.CANONICAL, *MAPPED, *WITHOUT_EFFECT, *CONSUMED]
    close = difflib.get_close_matches(name, sorted(known), 1, 0.6)
    hint = f"; did you mean {PREFIX}{close[0]}?" if close else ""
    return f"is no producer property of librdkafka {librdkafka.VERSION}{hint}"
