"""Options of the Avro converter: what stands below ``key.converter.`` or ``value.converter.``.

They bear the names that Confluent's Java converter gives them; its Python client gets them in its
own. What it cannot honour without weakening security is wrong; what changes nothing is told.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import urlsplit, urlunsplit

from firebird_cdc.config.values import ValueProblem, parse_boolean, parse_integer, split_list

_T = TypeVar("_T")

TOPIC: Final = "topic"
RECORD: Final = "record"
TOPIC_RECORD: Final = "topic_record"

# Java's class names end in these; Confluent's Python client spells the types in capitals.
_STRATEGIES: Final = {
    "TopicNameStrategy": TOPIC,
    "RecordNameStrategy": RECORD,
    "TopicRecordNameStrategy": TOPIC_RECORD,
}
_JAVA_STRATEGIES: Final = "io.confluent.kafka.serializers.subject."
_STRATEGY_MEANING: Final = (
    "How the subject of a schema is named: TopicNameStrategy, RecordNameStrategy or"
    " TopicRecordNameStrategy, with or without their package."
)
_URL: Final = "schema.registry.url"
_CLIENT: Final = "schema.registry."
_SCHEMAS_ENABLE: Final = "schemas.enable"  # an option of its own, which its owner warns of

_TIMEOUT_MS: Final = 5_000
"""Longest silence of a registry; a guess: the shipper's one thread waits meanwhile."""

_CACHED_SCHEMAS: Final = 5_000
"""Schemas held with their ids: more than the shapes of tables that are kept."""

_OAUTH: Final = (
    "bearer.auth.issuer.endpoint.url",
    "bearer.auth.client.id",
    "bearer.auth.client.secret",
    "bearer.auth.scope",
)
_AUTH_SOURCES: Final = ("URL", "USER_INFO")
_BEARER_SOURCES: Final = ("STATIC_TOKEN", "OAUTHBEARER")
_SSL_FILES: Final = ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location")
_STORES: Final = {
    "ssl.truststore": "ssl.ca.location",
    "ssl.keystore": "ssl.certificate.location",
}
_JAVA_STORES: Final = (".jks", ".p12", ".pfx", ".keystore", ".truststore")
_CONVERT: Final = "convert a Java key store with keytool and openssl pkcs12"

_ADJUSTED = "names are adjusted by field.name.adjustment.mode and schema.name.adjustment.mode"
_NO_ENUMS = "enumerations stay strings"
_NULLS = "NULL always stays null here"
_READERS = "it is for readers"

# Options of the Java converter that change nothing here: a warning says why.
WITHOUT_EFFECT: Final = {
    "allow.optional.map.keys": "no map here has such keys",
    "avro.reflection.allow.null": "it is about Java classes",
    "avro.remove.java.properties": "nothing here writes such properties",
    "avro.use.logical.type.converters": _READERS,
    "discard.type.doc.default": _READERS,
    "enhanced.avro.schema.support": _NO_ENUMS,
    "flatten.singleton.unions": _READERS,
    "generalized.sum.type.support": _NO_ENUMS,
    "ignore.default.for.nullables": _NULLS,
    "latest.cache.size": "schemas.cache.config bounds what is kept",
    "latest.cache.ttl.sec": "the latest version is asked for when the shipper starts",
    "latest.compatibility.strict": "a row that the latest version can't hold is always refused",
    "max.schemas.per.subject": "schemas.cache.config bounds what is kept",
    "schema.reflection": "it is about Java classes",
    "scrub.invalid.names": _ADJUSTED,
    "specific.avro.reader": _READERS,
    "ssl.truststore.password": "certificates in PEM form have no password",
}
# Of these, false is what happens anyway, so that it deserves no warning.
_FALSE_ANYWAY: Final = frozenset(
    name for name, why in WITHOUT_EFFECT.items() if why in (_NO_ENUMS, _ADJUSTED, _READERS)
)

PROPERTIES: Final = {
    "schema.registry.url": ("", "URLs of the schema registry, separated by commas; required."),
    "auto.register.schemas": (
        "true",
        "Whether new schemas are registered. false: they must be there.",
    ),
    "use.latest.version": (
        "false",
        "Whether the subject's latest schema is used for writing; needs"
        " `auto.register.schemas: false`.",
    ),
    "normalize.schemas": (
        "false",
        "Whether the registry brings schemas into its normal form first.",
    ),
    "key.subject.name.strategy": ("TopicNameStrategy", _STRATEGY_MEANING),
    "value.subject.name.strategy": ("TopicNameStrategy", _STRATEGY_MEANING),
    "connect.meta.data": (
        "true",
        "Whether schemas have the `connect.*` properties, from which readers in Kafka Connect make"
        " Connect's schemas.",
    ),
    "schemas.cache.config": ("5000", "How many schemas are kept with their ids."),
    "basic.auth.credentials.source": (
        "URL",
        "Where the registry's user and password are: in the URL, or in `basic.auth.user.info`.",
    ),
    "basic.auth.user.info": ("", "`user:password` for the registry."),
    "bearer.auth.credentials.source": (
        "",
        "`STATIC_TOKEN` or `OAUTHBEARER`: where a token for the registry comes from.",
    ),
    "bearer.auth.token": ("", "The token of `STATIC_TOKEN`."),
    "bearer.auth.issuer.endpoint.url": ("", "Where `OAUTHBEARER` gets its tokens."),
    "bearer.auth.client.id": ("", "Its client id."),
    "bearer.auth.client.secret": ("", "Its client's secret."),
    "bearer.auth.scope": ("", "Its scope."),
    "bearer.auth.logical.cluster": ("", "The registry's id in Confluent's cloud."),
    "bearer.auth.identity.pool.id": ("", "An identity pool there."),
    "schema.registry.ssl.truststore.location": (
        "",
        "PEM file with the authorities that the registry's certificate is checked against.",
    ),
    "schema.registry.ssl.truststore.type": ("", "Its form: `PEM`."),
    "schema.registry.ssl.keystore.location": ("", "PEM file with our certificate and its key."),
    "schema.registry.ssl.keystore.type": ("", "Its form: `PEM`."),
    "schema.registry.ssl.keystore.password": ("", "Password of that key."),
    "schema.registry.ssl.endpoint.identification.algorithm": (
        "https",
        "The registry's name is always compared with its certificate.",
    ),
    "ssl.ca.location": ("", "PEM file with authorities, librdkafka's name."),
    "ssl.certificate.location": ("", "PEM file with our certificate, librdkafka's name."),
    "ssl.key.location": ("", "PEM file with its key, librdkafka's name."),
    "ssl.key.password": ("", "Password of that key, librdkafka's name."),
    "http.connect.timeout.ms": ("5000", "Longest wait for a connection; the longer one counts."),
    "http.read.timeout.ms": ("5000", "Longest silence of the registry; the longer one counts."),
    "proxy.host": ("", "A proxy before the registry."),
    "proxy.port": ("80", "Its port."),
}
"""Options that the Avro converter heeds: default and meaning. ``schema.registry.`` may also be left
out, or put before a name that is written here without it, as in the Java converter."""

_PLAIN_NAMES: Final = frozenset(
    name if name == _URL else name.removeprefix(_CLIENT) for name in PROPERTIES
)


class Finding(NamedTuple):
    """Remark on one option, ``name`` without its prefix."""

    name: str
    why: str


class Findings(NamedTuple):
    """Remarks on the options of a converter that are wrong, missing or without effect.

    ``wrong``: why a value can't be used. ``missing``: why an option must be set.
    ``ignored``: why one has no effect.
    """

    wrong: list[Finding]
    missing: list[Finding]
    ignored: list[Finding]


@dataclass(frozen=True, slots=True)
class AvroOptions:
    """The options of one Avro converter, checked.

    ``client``: configuration of ``SchemaRegistryClient``, secrets included. ``servers``: the
    registry's addresses without credentials, for texts. ``strategy``: TOPIC, RECORD or
    TOPIC_RECORD. ``cached``: how many schemas are held with their ids.
    """

    client: dict[str, Any] = field(default_factory=dict, repr=False)
    servers: str = ""
    strategy: str = TOPIC
    auto_register: bool = True
    use_latest: bool = False
    normalize: bool = False
    meta_data: bool = True
    cached: int = _CACHED_SCHEMAS


def read_avro_options(options: Mapping[str, str], *, is_key: bool) -> tuple[AvroOptions, Findings]:
    """Return OPTIONS (without ``key.converter.`` or ``value.converter.``), typed.

    They can be used if nothing is wrong or missing.
    """
    reader = _Reader(options)
    return reader.read(is_key), Findings(reader.wrong, reader.missing, reader.ignored)


def without_credentials(url: str) -> str:
    """URL without the user and the password that may stand in it."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


class _Reader:
    """The options of one converter on their way to an ``AvroOptions``."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.wrong: list[Finding] = []
        self.missing: list[Finding] = []
        self.ignored: list[Finding] = []
        # The Java client takes its own options with this prefix too.
        self._names = {
            name if name == _URL else name.removeprefix(_CLIENT): name for name in options
        }
        self.given = {plain: options[name].strip() for plain, name in self._names.items()}
        self.client: dict[str, Any] = {}

    def read(self, is_key: bool) -> AvroOptions:
        """Check everything, and fill the three lists."""
        self._check_names()
        servers = self._servers()
        self._basic_auth()
        self._bearer_auth()
        self._ssl()
        self._network()
        auto_register = self._take("auto.register.schemas", parse_boolean, True)
        use_latest = self._take("use.latest.version", parse_boolean, False)
        if use_latest and auto_register:
            self._wrong("use.latest.version", "it needs auto.register.schemas: false beside it")
        return AvroOptions(
            client=self.client,
            servers=servers,
            strategy=self._strategy("key" if is_key else "value"),
            auto_register=auto_register,
            use_latest=use_latest,
            normalize=self._take("normalize.schemas", parse_boolean, False),
            meta_data=self._take("connect.meta.data", parse_boolean, True),
            cached=self._take(
                "schemas.cache.config",
                lambda text: parse_integer(text, 1, 2**31 - 1),
                _CACHED_SCHEMAS,
            ),
        )

    def _wrong(self, name: str, why: str) -> None:
        self.wrong.append(Finding(self._names[name], why))

    def _take(self, name: str, parse: Callable[[str], _T], default: _T) -> _T:
        """Parse the option NAME; DEFAULT if it is not set or wrong."""
        if name not in self.given:
            return default
        try:
            return parse(self.given[name])
        except ValueProblem as problem:
            self._wrong(name, str(problem))
            return default

    def _check_names(self) -> None:
        for plain, name in self._names.items():
            if plain in WITHOUT_EFFECT:
                if not (plain in _FALSE_ANYWAY and self.given[plain].lower() == "false"):
                    self.ignored.append(Finding(name, WITHOUT_EFFECT[plain]))
            elif plain not in _PLAIN_NAMES and plain != _SCHEMAS_ENABLE:
                near = difflib.get_close_matches(plain, sorted(_PLAIN_NAMES), 1)
                hint = f"; did you mean {near[0]}?" if near else ""
                self.ignored.append(Finding(name, f"the Avro converter does not know it{hint}"))

    def _servers(self) -> str:
        urls = split_list(self.given.get(_URL, ""))
        if not urls:
            self.missing.append(Finding(_URL, "the address of the schema registry"))
        shown = [without_credentials(url) for url in urls if _is_address(url)]
        if len(shown) < len(urls):
            self._wrong(_URL, "it must be one or more URLs, http:// or https://")
        self.client["url"] = ",".join(urls)
        return ", ".join(shown)

    def _basic_auth(self) -> None:
        source = self.given.get("basic.auth.credentials.source", "").upper()
        user_info = self.given.get("basic.auth.user.info", "")
        if source and source not in _AUTH_SOURCES:
            self._wrong("basic.auth.credentials.source", f"allowed: {', '.join(_AUTH_SOURCES)}")
        if source == "USER_INFO" and not user_info:
            self.missing.append(Finding("basic.auth.user.info", "user:password for USER_INFO"))
        if not user_info or source == "URL":
            return
        if ":" not in user_info:
            self._wrong("basic.auth.user.info", "it must be user:password")
        elif "@" in str(self.client["url"]):
            self._wrong("basic.auth.user.info", f"{_URL} names a user too; remove one of the two")
        self.client["basic.auth.user.info"] = user_info

    def _bearer_auth(self) -> None:
        name = "bearer.auth.credentials.source"
        source = self.given.get(name, "").upper()
        if not source:
            return
        if source not in _BEARER_SOURCES:
            self._wrong(name, f"allowed: {', '.join(_BEARER_SOURCES)}")
            return
        if "basic.auth.user.info" in self.client:
            self._wrong(name, "it excludes basic.auth.user.info; remove one of the two")
        for needed in _OAUTH if source == "OAUTHBEARER" else ("bearer.auth.token",):
            if self.given.get(needed):
                self.client[needed] = self.given[needed]
            else:
                self.missing.append(Finding(needed, f"{source} needs it"))
        self.client[name] = source
        # Only Confluent's cloud asks for it, but their client insists on some text.
        cluster = self.given.get("bearer.auth.logical.cluster", "")
        self.client["bearer.auth.logical.cluster"] = cluster
        if pool := self.given.get("bearer.auth.identity.pool.id"):
            self.client["bearer.auth.identity.pool.id"] = pool

    def _ssl(self) -> None:
        for store, target in _STORES.items():
            location = self.given.get(f"{store}.location")
            if self.given.get(f"{store}.type", "PEM").upper() != "PEM":
                self._wrong(f"{store}.type", f"allowed: PEM; {_CONVERT}")
            elif location and Path(location).suffix.lower() in _JAVA_STORES:
                self._wrong(f"{store}.location", f"it must be a PEM file; {_CONVERT}")
            elif location:
                self.client[target] = self._file(f"{store}.location")
        if password := self.given.get("ssl.keystore.password"):
            self.client["ssl.key.password"] = password
        for name in _SSL_FILES:
            if self.given.get(name):
                self.client[name] = self._file(name)
        if password := self.given.get("ssl.key.password"):
            self.client["ssl.key.password"] = password
        if "ssl.certificate.location" not in self.client:
            for name in ("ssl.key.location", "ssl.key.password"):
                if self.given.get(name):
                    self._wrong(name, "it needs ssl.certificate.location beside it")
        if self.given.get("ssl.endpoint.identification.algorithm", "https").lower() != "https":
            self._wrong("ssl.endpoint.identification.algorithm", "it must stay https")

    def _file(self, name: str) -> str:
        path = self.given[name]
        if not Path(path).exists():
            self._wrong(name, "there is no such file")
        return path

    def _network(self) -> None:
        waits = [
            self._take(name, lambda text: parse_integer(text, 1, 600_000), _TIMEOUT_MS)
            for name in ("http.connect.timeout.ms", "http.read.timeout.ms")
        ]
        given = [wait for wait in waits if wait != _TIMEOUT_MS]
        self.client["timeout"] = max(given, default=_TIMEOUT_MS) / 1000
        # The shipper repeats by itself, and sees to its other work in between.
        self.client["max.retries"] = 0
        port = self._take("proxy.port", lambda text: parse_integer(text, 1, 65535), 80)
        if host := self.given.get("proxy.host"):
            self.client["proxy"] = f"http://{host}:{port}"

    def _strategy(self, part: str) -> str:
        for name in ("key.subject.name.strategy", "value.subject.name.strategy"):
            given = self.given.get(name, "TopicNameStrategy")
            if given.removeprefix(_JAVA_STRATEGIES) not in _STRATEGIES:
                allowed = f"allowed: {', '.join(_STRATEGIES)}, also with {_JAVA_STRATEGIES} before"
                self._wrong(name, allowed)
        given = self.given.get(f"{part}.subject.name.strategy", "TopicNameStrategy")
        return _STRATEGIES.get(given.removeprefix(_JAVA_STRATEGIES), TOPIC)
