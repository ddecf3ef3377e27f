"""Options of the Avro converter: what stands below ``key.converter.`` or ``value.converter.``.

They bear the names that Confluent's Java converter gives them; its Python client gets them in its
own. What it cannot honour without weakening security is a problem; what has no effect here is
a warning.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit, urlunsplit

from firebird_cdc.config.options import is_secret
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

_TIMEOUT_MS: Final = 5_000
"""Longest silence of a registry; a guess: the shipper's one thread waits meanwhile."""

_CACHED_SCHEMAS: Final = 1_000
"""Schemas held with their ids, as the Java converter does."""

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
    "ssl.keystore.password": "a certificate in PEM form has none; its key has ssl.key.password",
    "ssl.truststore.password": "certificates in PEM form have no password",
}
# Of these, false is what happens anyway, so that it deserves no warning.
_FALSE_IS_TRUE: Final = frozenset(
    name for name, why in WITHOUT_EFFECT.items() if why in (_NO_ENUMS, _ADJUSTED, _READERS)
)

KNOWN: Final = frozenset(
    {
        "auto.register.schemas",
        "basic.auth.credentials.source",
        "basic.auth.user.info",
        "bearer.auth.credentials.source",
        "bearer.auth.identity.pool.id",
        "bearer.auth.logical.cluster",
        "bearer.auth.token",
        "connect.meta.data",
        "http.connect.timeout.ms",
        "http.read.timeout.ms",
        "key.subject.name.strategy",
        "normalize.schemas",
        "proxy.host",
        "proxy.port",
        "schema.registry.url",
        "schemas.cache.config",
        "schemas.enable",
        "ssl.endpoint.identification.algorithm",
        "ssl.key.password",
        "ssl.keystore.location",
        "ssl.keystore.type",
        "ssl.truststore.location",
        "ssl.truststore.type",
        "use.latest.version",
        "value.subject.name.strategy",
        *_OAUTH,
        *_SSL_FILES,
    }
)


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


def read_avro_options(
    options: Mapping[str, str], *, is_key: bool
) -> tuple[AvroOptions, list[str], list[str]]:
    """Return OPTIONS (without their prefix) typed, and the problems and warnings about them."""
    reader = _Reader(options, "key.converter." if is_key else "value.converter.")
    return reader.read(is_key), reader.problems, reader.warnings


def check_options(options: Mapping[str, str], *, is_key: bool) -> list[str]:
    """Return what is wrong with OPTIONS, one sentence each that names the whole option."""
    return read_avro_options(options, is_key=is_key)[1]


def ignored_options(options: Mapping[str, str], *, is_key: bool) -> list[str]:
    """Return which of OPTIONS change nothing here and why, one sentence each."""
    return read_avro_options(options, is_key=is_key)[2]


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

    def __init__(self, options: Mapping[str, str], prefix: str) -> None:
        self.prefix = prefix
        self.problems: list[str] = []
        self.warnings: list[str] = []
        # The Java client takes its own options with this prefix too.
        self.given = {
            name if name == "schema.registry.url" else name.removeprefix("schema.registry."): value
            for name, value in options.items()
        }
        self.client: dict[str, Any] = {}

    def read(self, is_key: bool) -> AvroOptions:
        """Check everything; what is wrong stands in ``problems`` then."""
        self._check_names()
        servers = self._servers()
        self._basic_auth()
        self._bearer_auth()
        self._ssl()
        self._network()
        auto_register = self._take("auto.register.schemas", parse_boolean, True)
        use_latest = self._take("use.latest.version", parse_boolean, False)
        if use_latest and auto_register:
            self._problem("use.latest.version", "needs auto.register.schemas: false beside it")
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

    def _problem(self, name: str, what: str) -> None:
        self.problems.append(f"{self.prefix}{name} {what}")

    def _shown(self, name: str) -> str:
        return "not valid" if is_secret(name) else repr(self.given[name])

    def _take(self, name: str, parse: Callable[[str], _T], default: _T) -> _T:
        """Parse the option NAME; DEFAULT if it is not set or wrong."""
        if name not in self.given:
            return default
        try:
            return parse(self.given[name].strip())
        except ValueProblem as problem:
            self._problem(name, f"is {self._shown(name)}; {problem}")
            return default

    def _check_names(self) -> None:
        for name, value in self.given.items():
            if name in WITHOUT_EFFECT:
                if not (name in _FALSE_IS_TRUE and value.strip().lower() == "false"):
                    why = WITHOUT_EFFECT[name]
                    self.warnings.append(f"{self.prefix}{name} has no effect: {why}")
            elif name not in KNOWN:
                near = difflib.get_close_matches(name, sorted(KNOWN), 1)
                hint = f"; did you mean {self.prefix}{near[0]}?" if near else ""
                self._problem(name, f"is not known to the Avro converter{hint}")

    def _servers(self) -> str:
        name = "schema.registry.url"
        urls = split_list(self.given.get(name, ""))
        if not urls:
            self._problem(name, "is missing: an Avro converter needs the registry's address")
        shown = [without_credentials(url) for url in urls if _is_address(url)]
        if len(shown) < len(urls):
            self._problem(
                name, "holds what is no address; allowed: http://host:port or https://host:port"
            )
        self.client["url"] = ",".join(urls)
        return ", ".join(shown)

    def _basic_auth(self) -> None:
        source = self.given.get("basic.auth.credentials.source", "").strip().upper()
        user_info = self.given.get("basic.auth.user.info", "")
        if source and source not in _AUTH_SOURCES:
            self._problem(
                "basic.auth.credentials.source",
                f"is {source!r}; allowed: {', '.join(_AUTH_SOURCES)}",
            )
        if source == "USER_INFO" and not user_info:
            self._problem("basic.auth.user.info", "is missing: USER_INFO takes its user:password")
        if not user_info or source == "URL":
            return
        if ":" not in user_info:
            self._problem("basic.auth.user.info", "is not valid; allowed: user:password")
        elif "@" in str(self.client["url"]):
            self._problem(
                "basic.auth.user.info", "and schema.registry.url both name a user: remove one"
            )
        self.client["basic.auth.user.info"] = user_info

    def _bearer_auth(self) -> None:
        source = self.given.get("bearer.auth.credentials.source", "").strip().upper()
        if not source:
            return
        if source not in _BEARER_SOURCES:
            self._problem(
                "bearer.auth.credentials.source",
                f"is {source!r}; allowed: {', '.join(_BEARER_SOURCES)}",
            )
            return
        if "basic.auth.user.info" in self.client:
            self._problem("bearer.auth.credentials.source", "and basic.auth exclude each other")
        needed = _OAUTH if source == "OAUTHBEARER" else ("bearer.auth.token",)
        for name in needed:
            if self.given.get(name):
                self.client[name] = self.given[name]
            else:
                self._problem(name, f"is missing: {source} needs it")
        self.client["bearer.auth.credentials.source"] = source
        # Only Confluent's cloud asks for it, but their client insists on some text.
        cluster = self.given.get("bearer.auth.logical.cluster", "")
        self.client["bearer.auth.logical.cluster"] = cluster
        if "bearer.auth.identity.pool.id" in self.given:
            pool = self.given["bearer.auth.identity.pool.id"]
            self.client["bearer.auth.identity.pool.id"] = pool

    def _ssl(self) -> None:
        for store, target in _STORES.items():
            location = self.given.get(f"{store}.location")
            form = self.given.get(f"{store}.type", "").strip().upper()
            if form and form != "PEM":
                self._problem(f"{store}.type", f"is {form!r}; allowed: PEM")
            elif location and not form and Path(location).suffix.lower() in (".jks", ".p12"):
                self._problem(
                    f"{store}.location",
                    "names a Java key store; convert it to a PEM file with openssl and keytool"
                    f" and set {self.prefix}{target} to that",
                )
            elif location:
                self.client[target] = location
        for name in (*_SSL_FILES, "ssl.key.password"):
            if self.given.get(name):
                self.client[name] = self.given[name]
        for name in _SSL_FILES:
            path = self.client.get(name)
            if path is not None and not Path(path).exists():
                self._problem(name, f"names {path}, which does not exist")
        if "ssl.key.location" in self.client and "ssl.certificate.location" not in self.client:
            self._problem("ssl.key.location", "needs ssl.certificate.location beside it")
        algorithm = self.given.get("ssl.endpoint.identification.algorithm", "https")
        if algorithm.strip().lower() != "https":
            self._problem(
                "ssl.endpoint.identification.algorithm",
                "must stay https: the registry's name is always compared with its certificate",
            )

    def _network(self) -> None:
        waits = [
            self._take(name, lambda text: parse_integer(text, 1, 600_000), _TIMEOUT_MS)
            for name in ("http.connect.timeout.ms", "http.read.timeout.ms")
            if name in self.given
        ]
        self.client["timeout"] = max(waits, default=_TIMEOUT_MS) / 1000
        # The shipper repeats by itself, and sees to its other work in between.
        self.client["max.retries"] = 0
        if host := self.given.get("proxy.host", "").strip():
            port = self._take("proxy.port", lambda text: parse_integer(text, 1, 65535), 80)
            self.client["proxy"] = f"http://{host}:{port}"

    def _strategy(self, part: str) -> str:
        name = f"{part}.subject.name.strategy"
        given = self.given.get(name, "TopicNameStrategy").strip()
        strategy = _STRATEGIES.get(given.removeprefix(_JAVA_STRATEGIES))
        if strategy is None:
            self._problem(name, f"is {given!r}; allowed: {', '.join(_STRATEGIES)}")
            return TOPIC
        return strategy
