"""A broker that asks who is there: TLS, SASL and rights, refused and granted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from certificates import Authority
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from shipping import Folder, Ship, Shipper, ids, read_topics
from soaked import half_of

from firebird_cdc.demo.kafka import KafkaBroker
from firebird_cdc.demo.service import free_port

pytestmark = pytest.mark.kafka

PASSWORD = "Gewitter-47-Zitrone"
OTHER_PASSWORD = "Nebel-12-Pflaume"
_LOGIN = "org.apache.kafka.common.security"


class Secured(NamedTuple):
    """A broker with TLS and SASL, and who signed its certificates."""

    broker: KafkaBroker
    authority: Authority
    stranger: Authority
    address: str
    misnamed: str  # the same broker, with the certificate of another host
    admin: AdminClient  # may do everything

    def set_password(self, user: str, password: str) -> None:
        """Have USER log in with PASSWORD from now on."""
        how = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        change = UserScramCredentialUpsertion(user, how, password.encode())
        for done in self.admin.alter_user_scram_credentials([change]).values():
            done.result(60)

    def grant(self, user: str, kind: ResourceType, name: str, *operations: AclOperation) -> None:
        """Let USER do OPERATIONS with what begins with NAME."""
        rules = [
            AclBinding(
                kind,
                name,
                ResourcePatternType.PREFIXED,
                f"User:{user}",
                "*",
                operation,
                AclPermissionType.ALLOW,
            )
            for operation in operations
        ]
        for done in self.admin.create_acls(rules).values():
            done.result(60)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, kafka_jars: Path) -> Iterator[Secured]:
    """One broker for all tests here; each has users of its own."""
    directory = tmp_path_factory.mktemp("secured")
    authority, stranger = Authority(directory, "authority"), Authority(directory, "stranger")
    ports = {"SAFE": free_port(), "MISNAMED": free_port()}
    keys = {
        "safe": authority.issue("broker.test", "127.0.0.1"),
        "misnamed": authority.issue("elsewhere.test"),
    }
    properties = {
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
        "SAFE:SASL_SSL,MISNAMED:SASL_SSL",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512,PLAIN",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    for name, key in keys.items():
        properties |= {
            f"listener.name.{name}.ssl.keystore.type": "PEM",
            f"listener.name.{name}.ssl.keystore.location": str(key),
            f"listener.name.{name}.scram-sha-512.sasl.jaas.config": (
                f"{_LOGIN}.scram.ScramLoginModule required;"
            ),
            f"listener.name.{name}.plain.sasl.jaas.config": (
                f'{_LOGIN}.plain.PlainLoginModule required user_plain="{PASSWORD}";'
            ),
        }
    made = KafkaBroker(directory, kafka_jars, listeners=ports, properties=properties)
    with made as broker:
        yield Secured(
            broker,
            authority,
            stranger,
            f"127.0.0.1:{ports['SAFE']}",
            f"127.0.0.1:{ports['MISNAMED']}",
            AdminClient({"bootstrap.servers": broker.bootstrap}),
        )


@pytest.fixture
def user(topic_prefix: str) -> str:
    """A user that no other test has."""
    return f"user-{topic_prefix}"


@pytest.fixture
def ship(ship: Ship, secured: Secured, user: str) -> Ship:
    """Shippers that log in as USER, who exists, and may do nothing yet."""
    secured.set_password(user, PASSWORD)
    use_login(ship, user, PASSWORD)
    ship.options |= {
        "kafka.producer.bootstrap.servers": secured.address,
        "kafka.producer.security.protocol": "SASL_SSL",
        "kafka.producer.ssl.truststore.type": "PEM",
        "kafka.producer.ssl.truststore.location": str(secured.authority.path),
        "kafka.producer.reconnect.backoff.max.ms": "300",
        "kafka.producer.close.timeout.ms": "1000",  # what Kafka refuses isn't waited for
    }
    return ship


@pytest.fixture
def broker(secured: Secured) -> KafkaBroker:
    """Return the broker at which the instruments of these tests look."""
    return secured.broker


def use_login(ship: Ship, user: str, password: str, mechanism: str = "SCRAM-SHA-512") -> None:
    module = "plain.Plain" if mechanism == "PLAIN" else "scram.Scram"
    ship.options |= {
        "kafka.producer.sasl.mechanism": mechanism,
        "kafka.producer.sasl.jaas.config": (
            f'{_LOGIN}.{module}LoginModule required username="{user}" password="{password}";'
        ),
    }


def grant_all(secured: Secured, user: str, prefix: str) -> None:
    for name in (prefix, f"__firebird-cdc-positions.{prefix}"):
        secured.grant(
            user,
            ResourceType.TOPIC,
            name,
            AclOperation.WRITE,
            AclOperation.READ,
            AclOperation.CREATE,
            AclOperation.DESCRIBE,
        )
    secured.grant(
        user,
        ResourceType.TRANSACTIONAL_ID,
        prefix,
        AclOperation.WRITE,
        AclOperation.DESCRIBE,
    )


def await_shipped(shipper: Shipper, folder: Folder) -> None:
    shipper.await_that(lambda: not folder.waiting, "all journals shipped")


def shipped_ids(secured: Secured, prefix: str) -> list[int]:
    topic = f"{prefix}._srv_fb_warehouse.fdb.ITEM"
    return ids(read_topics(secured.broker.bootstrap, topic).get(topic, []))


def await_told(shipper: Shipper, *cause: str) -> None:
    """Wait until the shipper says that it can't reach Kafka, for the CAUSE in all its words.

    A busy machine may have told before that an answer takes too long.
    """

    def is_told() -> bool:
        lines = shipper.log_lines("does not take messages")
        return any(all(word in line for word in cause) for line in lines)

    shipper.await_that(is_told, f"the cause {cause}")


def no_secret_is_told(ship: Ship, shipper: Shipper, folder: Folder) -> None:
    written = [shipper.log, ship.output(shipper)]
    written += [
        path.read_text("utf-8", "replace")
        for path in (folder.directory / ".firebird-cdc").rglob("*")
        if path.is_file()
    ]
    for text in written:
        assert PASSWORD not in text
        assert OTHER_PASSWORD not in text


@pytest.mark.parametrize(
    ("mechanism", "transactional"),
    half_of(("SCRAM-SHA-512", "PLAIN"), {"plain": False, "tx": True}),
)
def test_events_go_through_tls_and_a_login(
    mechanism: str,
    transactional: bool,
    ship: Ship,
    folder: Folder,
    secured: Secured,
    user: str,
    topic_prefix: str,
) -> None:
    login = "plain" if mechanism == "PLAIN" else user
    use_login(ship, login, PASSWORD, mechanism)
    grant_all(secured, login, topic_prefix)
    if transactional:
        ship.options["kafka.producer.transactional.id"] = f"{topic_prefix}-id"
    folder.write(1, rows=3)
    shipper = ship.start()
    await_shipped(shipper, folder)
    assert shipper.terminate() == 0
    assert shipped_ids(secured, topic_prefix) == [1_000_000, 1_000_001, 1_000_002]
    no_secret_is_told(ship, shipper, folder)


def test_wrong_password_is_reported_and_waited_for(
    ship: Ship, folder: Folder, secured: Secured, user: str, topic_prefix: str
) -> None:
    grant_all(secured, user, topic_prefix)
    use_login(ship, user, OTHER_PASSWORD)
    folder.write(1)
    shipper = ship.start()
    await_told(shipper, "uthentication failed")
    assert folder.waiting
    secured.set_password(user, OTHER_PASSWORD)
    await_shipped(shipper, folder)
    assert shipper.terminate() == 0
    assert shipped_ids(secured, topic_prefix) == [1_000_000]
    no_secret_is_told(ship, shipper, folder)


def test_certificate_of_an_unknown_authority_is_refused(
    ship: Ship, folder: Folder, secured: Secured, user: str, topic_prefix: str
) -> None:
    grant_all(secured, user, topic_prefix)
    ship.options["kafka.producer.ssl.truststore.location"] = str(secured.stranger.path)
    folder.write(1)
    shipper = ship.start()
    await_told(shipper, "SSL handshake failed", "verify")
    assert shipper.terminate() == 0
    assert folder.waiting
    no_secret_is_told(ship, shipper, folder)


def test_certificate_of_another_host_is_refused_unless_checks_of_names_are_off(
    ship: Ship, folder: Folder, secured: Secured, user: str, topic_prefix: str
) -> None:
    grant_all(secured, user, topic_prefix)
    ship.options["kafka.producer.bootstrap.servers"] = secured.misnamed
    folder.write(1)
    shipper = ship.start()
    await_told(shipper, "certificate verify failed")
    assert shipper.terminate() == 0
    assert folder.waiting
    ship.options["kafka.producer.ssl.endpoint.identification.algorithm"] = '""'
    shipper = ship.start()
    await_shipped(shipper, folder)
    assert shipper.terminate() == 0
    assert shipped_ids(secured, topic_prefix) == [1_000_000]


def test_missing_rights_are_reported_in_turn_and_waited_for(
    ship: Ship, folder: Folder, secured: Secured, user: str, topic_prefix: str
) -> None:
    ship.options["kafka.producer.transactional.id"] = f"{topic_prefix}-id"
    position_topic = f"__firebird-cdc-positions.{topic_prefix}"
    folder.write(1)
    shipper = ship.start()
    shipper.await_log("Transactional Id authorization failed")
    secured.grant(
        user,
        ResourceType.TRANSACTIONAL_ID,
        topic_prefix,
        AclOperation.WRITE,
        AclOperation.DESCRIBE,
    )
    shipper.await_log(position_topic)
    topic = (AclOperation.WRITE, AclOperation.CREATE, AclOperation.DESCRIBE)
    secured.grant(user, ResourceType.TOPIC, position_topic, *topic, AclOperation.READ)
    shipper.await_log("ITEM")
    secured.grant(user, ResourceType.TOPIC, f"{topic_prefix}._srv", *topic)
    await_shipped(shipper, folder)
    assert shipper.terminate() == 0
    assert shipped_ids(secured, topic_prefix) == [1_000_000]


def test_missing_right_to_a_topic_is_reported_and_waited_for(
    ship: Ship, folder: Folder, secured: Secured, user: str, topic_prefix: str
) -> None:
    folder.write(1)
    folder.write(2)
    shipper = ship.start()
    await_told(shipper, "authorization failed")
    grant_all(secured, user, topic_prefix)
    await_shipped(shipper, folder)
    assert shipper.terminate() == 0
    assert shipped_ids(secured, topic_prefix) == [1_000_000, 2_000_000]
