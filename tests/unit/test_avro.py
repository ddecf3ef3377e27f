"""Avro: names and values that it can't express, and a registry in every kind of trouble.

The registry here is a small server that answers what a test tells it; real ones are asked in
tests/kafka.
"""

from __future__ import annotations

import json
import ssl
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from told import Told

from firebird_cdc.demo.processes import await_condition
from firebird_cdc.errors import (
    ConfigError,
    RegistryDenied,
    RegistryRefused,
    RegistryUnavailable,
    SetupError,
)
from firebird_cdc.journal.events import avro
from firebird_cdc.journal.events.avro import AvroConverter, avro_schema
from firebird_cdc.journal.events.schema import (
    INT32,
    INT64,
    OPTIONAL_STRING,
    STRING,
    Schema,
    struct,
)
from firebird_cdc.journal.events.values import BadValue

ROW = struct("p.depot.ITEM.Value", ("ID", INT64))


@pytest.fixture
def told() -> Iterator[Told]:
    server = Told()
    yield server
    server.end()


@pytest.fixture
def converters() -> Iterator[list[AvroConverter]]:
    """Those put in here are closed."""
    made: list[AvroConverter] = []
    yield made
    for converter in made:
        converter.close()


def convert(converters: list[AvroConverter], url: str, **options: str) -> bytes | None:
    """One message by a new converter."""
    converters.append(AvroConverter({"schema.registry.url": url, **options}, is_key=False))
    return converters[-1].from_connect("t", ROW, {"ID": 1})


# What the registry says


@pytest.mark.parametrize(
    ("status", "body", "error", "said"),
    [
        (
            409,
            {"error_code": 409, "message": "not so"},
            RegistryRefused,
            "HTTP 409, error 409, not",
        ),
        (
            422,
            {"error_code": 42201, "message": "bad"},
            RegistryRefused,
            "HTTP 422, error 42201, bad",
        ),
        (401, {"error_code": 401, "message": "who?"}, RegistryDenied, "basic.auth"),
        (403, {"error_code": 40301, "message": "no"}, RegistryDenied, "rights"),
        (405, {"error_code": 405, "message": "not here"}, RegistryDenied, "not here"),
        (429, {"error_code": 429, "message": "slowly"}, RegistryUnavailable, "slowly"),
        (500, {"error_code": 50001, "message": "oh"}, RegistryUnavailable, "HTTP 500"),
        (503, b"<html>maintenance</html>", RegistryUnavailable, "maintenance"),
        (404, b"<html>nothing here</html>", RegistryDenied, "value.converter.schema.reg"),
        (200, b"<html>welcome</html>", RegistryUnavailable, "not what a schema registry does"),
        (200, [], RegistryUnavailable, "not what a schema registry does"),
    ],
)
def test_registry_answer_distinguishes_refusal_from_unavailability(
    told: Told, converters: list[AvroConverter], status: int, body: Any, error: Any, said: str
) -> None:
    told.status = status
    told.body = body if isinstance(body, bytes) else json.dumps(body).encode()
    with pytest.raises(error) as raised:
        convert(converters, f"http://{told.address}")
    assert raised.type is error
    with pytest.raises(error) as again:  # which is believed for a moment
        converters[-1].from_connect("t", ROW, {"ID": 1})
    assert (again.type, str(again.value)) == (error, str(raised.value))
    text = str(raised.value)
    assert said in text
    assert "t-value" in text
    assert told.address in text


def test_no_secret_gets_into_a_text_even_if_the_registry_repeats_it(
    told: Told, converters: list[AvroConverter]
) -> None:
    told.status, told.body = 500, b'{"error_code": 1, "message": "ge%heim, seven"}'
    with pytest.raises(RegistryUnavailable) as raised:
        convert(converters, f"http://me:ge%25heim@{told.address}")
    assert "seven" in str(raised.value)
    assert "heim" not in str(raised.value)


def test_unresponsive_registry_is_given_up_after_the_read_timeout(
    told: Told, converters: list[AvroConverter], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(avro, "_REST_S", 60.0)
    told.silent = Event()
    tried, took_s = 0, 5.0
    while took_s >= 5 and tried < 5:  # as long as it would be waited for by default, each time
        tried += 1
        began = monotonic()
        with pytest.raises(RegistryUnavailable):
            convert(converters, f"http://{told.address}", **{"http.read.timeout.ms": "200"})
        took_s = monotonic() - began
    assert took_s < 5
    # Nor do others wait for it again at once.
    with pytest.raises(RegistryUnavailable):
        converters[-1].from_connect("another", ROW, {"ID": 1})
    await_condition("the first requests", lambda: len(told.asked) >= tried, 60)
    assert len(told.asked) == tried


def test_second_address_is_asked_if_the_first_is_away(
    told: Told, converters: list[AvroConverter]
) -> None:
    urls = f"http://127.0.0.1:1, http://{told.address}/below"
    assert convert(converters, urls) == b"\0\0\0\0\x07\x02"
    assert told.asked[0][0].startswith("/below/subjects/t-value/versions")


# Who we are


@pytest.mark.parametrize(
    ("options", "user", "sent"),
    [
        ({}, "me:geheim@", "Basic bWU6Z2VoZWlt"),
        ({"basic.auth.user.info": "me:geheim"}, "", "Basic bWU6Z2VoZWlt"),
        (
            {"bearer.auth.credentials.source": "STATIC_TOKEN", "bearer.auth.token": "geheim"},
            "",
            "Bearer geheim",
        ),
    ],
)
def test_credentials_are_sent(
    told: Told, converters: list[AvroConverter], options: dict[str, str], user: str, sent: str
) -> None:
    convert(converters, f"http://{user}{told.address}", **options)
    assert [headers["Authorization"] for _, headers in told.asked] == [sent]


def _certificate(folder: Path) -> Path:
    """A PEM file with a certificate for 127.0.0.1, signed by itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "registry")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = folder / "both.pem"
    pem.write_bytes(
        certificate.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return pem


def test_both_sides_show_certificates(
    told: Told, converters: list[AvroConverter], tmp_path: Path
) -> None:
    pem = str(_certificate(tmp_path))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(pem)
    told.server.socket = context.wrap_socket(told.server.socket, server_side=True)
    url = f"https://{told.address}"
    own = {"schema.registry.ssl.keystore.location": pem}
    with pytest.raises(RegistryUnavailable, match=r"(?i)certificate"):
        convert(converters, url, **own)
    trusted = {"schema.registry.ssl.truststore.location": pem}
    assert convert(converters, url, **own, **trusted) is not None


def test_file_that_is_no_certificate_is_an_error_of_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "x.pem").write_text("no certificate")
    options = {"schema.registry.url": "https://a", "ssl.ca.location": str(tmp_path / "x.pem")}
    with pytest.raises(ConfigError, match=r"key\.converter\.\*"):
        AvroConverter(options, is_key=True)


def test_packages_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka.schema_registry.avro", None)
    with pytest.raises(SetupError, match=r"pip install '\.\[avro\]'"):
        AvroConverter({"schema.registry.url": "http://a"}, is_key=True)


# What Avro can't express


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (struct("p.depot.ITEM.Key", ("OWN-ID", INT64)), "field.name.adjustment.mode: avro"),
        (struct("p.depot.ITEM.Key", ("Наименование", INT64)), "field Наименование of p.depot"),
        (struct("p.2024.ITEM.Key", ("ID", INT64)), "schema.name.adjustment.mode: avro"),
        (struct("p..Key", ("ID", INT64)), "schema p..Key"),
        (
            struct("p.A", ("x", struct("p.B", ("i", INT64))), ("y", struct("p.B", ("i", STRING)))),
            "two structs of different fields are both named p.B",
        ),
        (struct("p.A", ("x", struct("p.A", ("i", INT64)))), "both named p.A"),
    ],
)
def test_names_that_avro_forbids_name_the_way_out(schema: Schema, said: str) -> None:
    with pytest.raises(BadValue) as raised:
        avro_schema(schema)
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("schema", "value", "options", "said"),
    [
        (ROW, {"ID": "one"}, {}, "does not fit its Avro schema"),
        (ROW, {}, {}, "ID"),
        (ROW, {"ID": None}, {}, "does not fit its Avro schema"),
        (
            struct("p.X", ("s", struct("p.Y", ("i", INT32), optional=True))),
            {"s": {"i": "one"}},
            {},
            "does not fit its Avro schema",
        ),
        (None, {"ID": 1}, {}, "Avro needs one"),
        (STRING, "x", {"value.subject.name.strategy": "RecordNameStrategy"}, "TopicNameStrategy"),
    ],
)
def test_value_that_avro_cannot_express_is_a_bad_value(
    told: Told,
    converters: list[AvroConverter],
    schema: Schema | None,
    value: Any,
    options: dict[str, str],
    said: str,
) -> None:
    given = {"schema.registry.url": f"http://{told.address}", **options}
    converters.append(AvroConverter(given, is_key=False))
    with pytest.raises(BadValue) as raised:
        converters[0].from_connect("t", schema, value)
    assert said in str(raised.value)


def test_avro_schema_can_leave_out_connects_properties() -> None:
    date = Schema("int32", name="org.apache.kafka.connect.data.Date", version=1)
    schema = struct("p.Value", ("day", date), ("name", OPTIONAL_STRING), version=2)
    assert avro_schema(schema, meta_data=False)[0] == {
        "type": "record",
        "name": "Value",
        "namespace": "p",
        "fields": [
            {"name": "day", "type": {"type": "int", "logicalType": "date"}},
            {"name": "name", "type": ["null", "string"], "default": None},
        ],
    }


def test_more_schemas_than_are_kept_are_written_all_the_same(
    told: Told, converters: list[AvroConverter]
) -> None:
    given = {"schema.registry.url": f"http://{told.address}", "schemas.cache.config": "1"}
    converters.append(AvroConverter(given, is_key=False))
    for topic in ("a", "b", "a"):
        assert converters[0].from_connect(topic, ROW, {"ID": 1}) == b"\0\0\0\0\x07\x02"
