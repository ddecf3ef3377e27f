"""The producer properties of librdkafka 2.16: names, ranges, choices, second names. Of those that
only consumers have, some.

A table of our own, so that a server that loads the configuration need not load the Kafka
client. Tests hold it against the installed library, which decides in the shipper.
Left out: callbacks, and what only the application that embeds the library may set.
"""

from __future__ import annotations

from typing import Final

VERSION: Final = "2.16"

_INT: Final = 2**31 - 1


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Names of one property, and the one that is used here: the Java client's where it has one.
CANONICAL: Final = {
    "compression.codec": "compression.type",
    "max.in.flight": "max.in.flight.requests.per.connection",
    "message.send.max.retries": "retries",
    "message.timeout.ms": "delivery.timeout.ms",
    "metadata.broker.list": "bootstrap.servers",
    "queue.buffering.max.ms": "linger.ms",
    "request.required.acks": "acks",
    "sasl.mechanisms": "sasl.mechanism",
    "sasl.oauthbearer.client.id": "sasl.oauthbearer.client.credentials.client.id",
    "sasl.oauthbearer.client.secret": "sasl.oauthbearer.client.credentials.client.secret",
}

INTEGERS: Final = {
    "api.version.fallback.ms": (0, 604_800_000),
    "api.version.request.timeout.ms": (1, 300_000),
    "batch.num.messages": (1, 1_000_000),
    "batch.size": (1, _INT),
    "broker.address.ttl": (0, 86_400_000),
    "compression.level": (-1, 12),
    "connections.max.idle.ms": (0, _INT),
    "delivery.timeout.ms": (0, _INT),
    "linger.ms": (0, 900_000),
    "log_level": (0, 7),
    "max.in.flight.requests.per.connection": (1, 1_000_000),
    "message.copy.max.bytes": (0, 1_000_000_000),
    "message.max.bytes": (1000, 1_000_000_000),
    "metadata.max.age.ms": (1, 86_400_000),
    "metadata.recovery.rebootstrap.trigger.ms": (0, _INT),
    "queue.buffering.backpressure.threshold": (1, 1_000_000),
    "queue.buffering.max.kbytes": (1, _INT),
    "queue.buffering.max.messages": (0, _INT),
    "receive.message.max.bytes": (1000, _INT),
    "reconnect.backoff.jitter.ms": (0, 3_600_000),
    "reconnect.backoff.max.ms": (0, 3_600_000),
    "reconnect.backoff.ms": (0, 3_600_000),
    "request.timeout.ms": (1, 900_000),
    "retries": (0, _INT),
    "retry.backoff.max.ms": (1, 300_000),
    "retry.backoff.ms": (1, 300_000),
    "sasl.kerberos.min.time.before.relogin": (0, 86_400_000),
    "sasl.oauthbearer.assertion.claim.exp.seconds": (1, _INT),
    "sasl.oauthbearer.assertion.claim.nbf.seconds": (0, _INT),
    "socket.blocking.max.ms": (1, 60_000),
    "socket.connection.setup.timeout.ms": (1000, _INT),
    "socket.max.fails": (0, 1_000_000),
    "socket.receive.buffer.bytes": (0, 100_000_000),
    "socket.send.buffer.bytes": (0, 100_000_000),
    "socket.timeout.ms": (10, 300_000),
    "statistics.interval.ms": (0, 86_400_000),
    "sticky.partitioning.linger.ms": (0, 900_000),
    "topic.metadata.propagation.max.ms": (0, 3_600_000),
    "topic.metadata.refresh.fast.cnt": (0, 1000),
    "topic.metadata.refresh.fast.interval.ms": (1, 60_000),
    "topic.metadata.refresh.interval.ms": (-1, 3_600_000),
    "transaction.timeout.ms": (1000, _INT),
}

# The Java client takes a wider range for these: a value outside librdkafka's is narrowed.
WIDER_IN_JAVA: Final = _names(
    """batch.size connections.max.idle.ms linger.ms max.in.flight.requests.per.connection
    message.max.bytes metadata.max.age.ms reconnect.backoff.max.ms reconnect.backoff.ms
    request.timeout.ms retry.backoff.max.ms retry.backoff.ms
    sasl.kerberos.min.time.before.relogin socket.connection.setup.timeout.ms
    socket.receive.buffer.bytes socket.send.buffer.bytes transaction.timeout.ms"""
)

CHOICES: Final = {
    "acks": ("all", "-1", "0", "1"),
    "broker.address.family": ("any", "v4", "v6"),
    "client.dns.lookup": ("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"),
    "compression.type": ("none", "gzip", "snappy", "lz4", "zstd"),
    "metadata.recovery.strategy": ("none", "rebootstrap"),
    "partitioner": (
        "murmur2_random",
        "murmur2",
        "consistent_random",
        "consistent",
        "fnv1a_random",
        "fnv1a",
        "random",
    ),
    "sasl.oauthbearer.assertion.algorithm": ("RS256", "ES256"),
    "sasl.oauthbearer.grant.type": (
        "client_credentials",
        "urn:ietf:params:oauth:grant-type:jwt-bearer",
    ),
    "sasl.oauthbearer.metadata.authentication.type": ("none", "azure_imds", "aws_iam"),
    "sasl.oauthbearer.method": ("default", "oidc"),
    "security.protocol": ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl"),
    "ssl.endpoint.identification.algorithm": ("none", "https"),
}

BOOLEANS: Final = _names(
    """allow.auto.create.topics api.version.request enable.gapless.guarantee enable.idempotence
    enable.metrics.push enable.random.seed enable.sasl.oauthbearer.unsecure.jwt
    enable.ssl.certificate.verification log.connection.close log.thread.name
    produce.offset.report sasl.oauthbearer.assertion.claim.jti.include socket.keepalive.enable
    socket.nagle.disable topic.metadata.refresh.sparse"""
)

TEXTS: Final = _names(
    """bootstrap.servers broker.version.fallback client.id client.rack debug https.ca.location
    https.ca.pem plugin.library.paths sasl.kerberos.keytab sasl.kerberos.kinit.cmd
    sasl.kerberos.principal sasl.kerberos.service.name sasl.mechanism
    sasl.oauthbearer.assertion.claim.aud sasl.oauthbearer.assertion.claim.iss
    sasl.oauthbearer.assertion.claim.sub sasl.oauthbearer.assertion.file
    sasl.oauthbearer.assertion.jwt.template.file sasl.oauthbearer.assertion.private.key.file
    sasl.oauthbearer.assertion.private.key.passphrase sasl.oauthbearer.assertion.private.key.pem
    sasl.oauthbearer.client.credentials.client.id
    sasl.oauthbearer.client.credentials.client.secret sasl.oauthbearer.config
    sasl.oauthbearer.extensions sasl.oauthbearer.scope sasl.oauthbearer.sub.claim.name
    sasl.oauthbearer.token.endpoint.url sasl.password sasl.username ssl.ca.certificate.stores
    ssl.ca.location ssl.ca.pem ssl.certificate.location ssl.certificate.pem ssl.cipher.suites
    ssl.crl.location ssl.curves.list ssl.engine.id ssl.engine.location ssl.key.location
    ssl.key.password ssl.key.pem ssl.keystore.location ssl.keystore.password ssl.providers
    ssl.sigalgs.list topic.blacklist transactional.id"""
)

PROPERTIES: Final = frozenset(INTEGERS) | frozenset(CHOICES) | BOOLEANS | TEXTS

PRODUCER_ONLY: Final = _names(
    """transactional.id transaction.timeout.ms enable.idempotence enable.gapless.guarantee
    queue.buffering.max.messages queue.buffering.max.kbytes queue.buffering.max.ms linger.ms
    message.send.max.retries retries queue.buffering.backpressure.threshold
    compression.codec compression.type compression.level batch.num.messages batch.size
    sticky.partitioning.linger.ms request.required.acks acks request.timeout.ms
    message.timeout.ms delivery.timeout.ms queuing.strategy partitioner message.max.bytes
    statistics.interval.ms"""
)
"""Properties of a producer that other clients don't take, or need not heed."""

CONSUMER_INTEGERS: Final = {
    "fetch.error.backoff.ms": (0, 300_000),
    "fetch.max.bytes": (1_000_000, _INT - 512),  # not less than message.max.bytes
    "fetch.min.bytes": (1, 100_000_000),
    "fetch.wait.max.ms": (0, 300_000),
    "max.partition.fetch.bytes": (1, 1_000_000_000),
    "queued.max.messages.kbytes": (1, 2_097_151),
    "queued.min.messages": (1, 10_000_000),
}
CONSUMER_CHOICES: Final = {"isolation.level": ("read_uncommitted", "read_committed")}
CONSUMER_BOOLEANS: Final = frozenset({"check.crcs"})
CONSUMERS_WIDER_IN_JAVA: Final = _names(
    "fetch.max.bytes fetch.min.bytes fetch.wait.max.ms max.partition.fetch.bytes"
)
