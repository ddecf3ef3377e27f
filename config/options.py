"""The one table of all options of ``reddatabase.connector.yaml``.

The loader, the warnings and docs/reference.md are made from it. Sources: the manual of the
RED Database connector, the Debezium documents it builds on, and this project's own needs.
"""

from __future__ import annotations

from firebird_cdc.config.option import (
    INT_MAX,
    LONG_MAX,
    MASK_MAX,
    Group,
    Kind,
    Option,
    Status,
)
from firebird_cdc.config.snapshot_options import SNAPSHOT_OPTIONS

__all__ = [
    "ALIASES",
    "AVRO_CONVERTER",
    "BY_NAME",
    "INT_MAX",
    "JSON_CONVERTER",
    "LONG_MAX",
    "MASK_MAX",
    "OPTIONS",
    "Group",
    "Kind",
    "Option",
    "Status",
    "find_option",
]

JSON_CONVERTER = "org.apache.kafka.connect.json.JsonConverter"
AVRO_CONVERTER = "io.confluent.connect.avro.AvroConverter"

_NEVER = Status.NEVER
_S = Kind.STRING
_I = Kind.INTEGER
_B = Kind.BOOLEAN


def _never(names: str, instead: str) -> tuple[Option, ...]:
    return tuple(
        Option(name, _S, None, "", Group.NEVER, _NEVER, instead=instead) for name in names.split()
    )


# fmt: off
OPTIONS: tuple[Option, ...] = (
    # -- connector and journals
    Option(
        "connector.name", _S, None, "Name of this connector; goes with every message as the"
        " header `__debezium.context.connectorName`.", Group.CONNECTOR, required=True,
    ),
    Option(
        "connector.journal.directory", Kind.DIRECTORY, None, "Where transaction journals are"
        " written. One local file system, writable by the server's operating system user.",
        Group.CONNECTOR, required=True,
    ),
    Option(
        "connector.journal.check.interval.ms", _I, "0",
        "How often the journal directory is scanned for journals to send, in addition to file"
        " notifications. 0: no timer; it is scanned at the start, after each commit, and"
        " while unsent journals remain.", Group.CONNECTOR, unit="ms",
    ),
    Option(
        "connector.journal.fsync", _B, "true", "Whether a commit waits until its journal is on"
        " disk. true survives a power failure, false only a crash of the server process.",
        Group.CONNECTOR,
    ),
    Option(
        "connector.journal.transactions", _I, "0", "How many transactions share a journal at most;"
        " large ones, and those with DDL, never do. 0: as many as there is room for. 1: each"
        " transaction has a journal of its own.", Group.CONNECTOR,
        high=INT_MAX,
    ),
    Option(
        "connector.journal.memory.bytes", _I, "16777216", "How many bytes of changes the open"
        " transactions of a server process may have in memory together. From five eighths of it on"
        " the largest are written to journals of their own, each with its next change; beyond it"
        " all that have over 8 KiB. 0: no limit.", Group.CONNECTOR, unit="bytes",
    ),
    Option(
        "connector.journal.archive.directory", Kind.DIRECTORY, None, "Where shipped journals are"
        " kept for audits and replays. Unset: a shipped journal is deleted.", Group.CONNECTOR,
    ),
    Option(
        "connector.journal.archive.segment.bytes", _I, "67108864", "Small journals in the archive"
        " are packed into ZIP files, each of which takes journals of so many bytes together. 0:"
        " every journal stays a file of its own.", Group.CONNECTOR, unit="bytes",
    ),
    Option(
        "connector.journal.archive.retention.ms", _I, "0", "How long after its commit a journal is"
        " kept in the archive; a packed one as long as the youngest in its file. 0: for ever.",
        Group.CONNECTOR, unit="ms",
    ),
    Option(
        "connector.journal.archive.retention.bytes", _I, "0", "How large the archive may get on"
        " disk before its oldest files are removed. 0: without limit.", Group.CONNECTOR,
        unit="bytes",
    ),
    Option(
        "connector.journal.warn.bytes", _I, "1073741824", "Log and status warn when waiting"
        " journals take more bytes than this. 0: never.", Group.CONNECTOR, unit="bytes",
    ),
    Option(
        "connector.journal.max.bytes", _I, "0",
        "Limit in bytes for waiting journals. A transaction that would exceed it is refused,"
        " or leaves a gap, as connector.capture.failure.mode says, until usage falls below"
        " nine tenths of it. 0: no limit; else at least 16777216.", Group.CONNECTOR, unit="bytes",
    ),
    Option(
        "connector.journal.min.free.bytes", _I, "268435456", "Log and status warn when less than"
        " this is free on the file system of connector.journal.directory. 0: never.",
        Group.CONNECTOR, unit="bytes",
    ),
    Option(
        "connector.capture.failure.mode", Kind.CHOICE, "refuse", "What happens to a transaction"
        " whose changes cannot be recorded. refuse: its commit fails with the cause, which needs"
        " `report_errors = true` and `disable_on_error = false` in replication.conf: with any other"
        " setting there it acts as gap. gap: it commits, and a marked gap tells of the loss.",
        Group.CONNECTOR, allowed=("refuse", "gap"),
    ),
    Option(
        "connector.shipper", Kind.CHOICE, "embedded", "Who starts the shipper. embedded: the"
        " server's plugin starts and restarts it. external: you do, with `firebird-cdc ship`.",
        Group.CONNECTOR, allowed=("embedded", "external"),
    ),
    Option(
        "connector.snapshot.by.server", Kind.BOOLEAN, "false", "With ServerMode = Super, have the"
        " server process itself read existing rows for snapshots, where database.hostname is not"
        " set: without a password, with the rights of SYSDBA.", Group.CONNECTOR,
    ),
    # -- Kafka producer
    Option(
        "kafka.producer.bootstrap.servers", Kind.LIST, None, "Some brokers of the cluster, as"
        " host1:port1,host2:port2; the others are found through them.", Group.KAFKA, required=True,
        aliases=("kafka.producer.metadata.broker.list",),
    ),
    Option(
        "kafka.producer.retries", _I, "2147483647", "How often a failed send is repeated before"
        " it counts as failed; delivery.timeout.ms is the better limit.", Group.KAFKA,
        high=INT_MAX,
    ),
    Option(
        "kafka.producer.retry.backoff.ms", _I, "100", "Pause before a request is repeated, and"
        " between attempts to send a journal again.", Group.KAFKA, unit="ms",
    ),
    Option(
        "kafka.producer.transactional.id", _S, None, "Turns on exactly-once delivery for"
        " read_committed consumers: all events of a database transaction become visible together."
        " Must differ on every server. Unset: at least once, in order.", Group.KAFKA,
    ),
    Option(
        "kafka.producer.max.block.ms", _I, "60000", "The Java client's longest wait. Accepted, and"
        " not needed: the shipper waits in short steps and goes on trying. No database commit ever"
        " waits for it.",
        Group.KAFKA, unit="ms",
    ),
    Option(
        "kafka.producer.delivery.timeout.ms", _I, "120000", "Time from handing a message to the"
        " producer to its success or failure, repetitions included. At least request.timeout.ms +"
        " linger.ms.", Group.KAFKA, unit="ms", high=INT_MAX,
    ),
    Option(
        "kafka.producer.request.timeout.ms", _I, "30000", "Longest wait for a broker's answer;"
        " should exceed the broker's replica.lag.time.max.ms.", Group.KAFKA, unit="ms",
        high=INT_MAX,
    ),
    Option(
        "kafka.producer.close.timeout.ms", _I, "60000",
        "Time limit for stopping the shipper, from SIGTERM until its process is gone; less"
        " than a second counts as one. Two seconds without an acknowledgement end it earlier."
        " What is not sent by then stays in its journal.", Group.KAFKA, unit="ms",
    ),
    Option(
        "kafka.position.topic", Kind.TOPIC_PART, None,
        "Offset topic, in which the shipper keeps up to where each database was shipped. It"
        " is created compacted, with one partition. Default:"
        " `__firebird-cdc-positions.<kafka.topic.prefix>`, which patterns for topics of"
        " tables pass by.", Group.TOPICS,
    ),
    Option(
        "kafka.producer.<property>", _S, None, "Any other producer property, of librdkafka or of"
        " the Java client; see below.", Group.KAFKA,
    ),
    # -- topics
    Option(
        "kafka.topic.prefix", Kind.TOPIC_PART, None, "Logical name of this server and first part"
        " of all its topics' names; must differ from every other connector's. Changing it moves"
        " later events to new topics.", Group.TOPICS, required=True, aliases=("topic.prefix",),
    ),
    Option(
        "topic.delimiter", Kind.TOPIC_PART, ".", "Stands between the parts of a topic's name.",
        Group.TOPICS,
    ),
    Option(
        "topic.naming.strategy", Kind.SHORT_NAME, "io.debezium.schema.SchemaTopicNamingStrategy",
        "How data topics are named. default: `<prefix>.<database path>.<table>`. table:"
        " `<prefix>.<table>`, for one database.", Group.TOPICS, allowed=("default", "table"),
    ),
    Option(
        "topic.name.encoding", Kind.CHOICE, "replace",
        "What becomes of characters in names of topics that Kafka forbids. replace: each is"
        " `_`, and tables whose topics would have the same name conflict. transliterate:"
        " Latin letters and a short hash. escape: every name has a topic of its own. See"
        " below.", Group.TOPICS,
        allowed=("replace", "transliterate", "escape"),
    ),
    Option(
        "override.data.change.topic.prefix", Kind.TOPIC_PART, None, "Prefix of data topics under"
        " the table naming strategy, in place of kafka.topic.prefix.", Group.TOPICS,
    ),
    Option(
        "topic.cache.size", _I, "10000", "How many topic names are kept in memory.", Group.TOPICS,
        low=1, high=INT_MAX,
    ),
    Option(
        "topic.transaction", Kind.TOPIC_PART, "transaction", "Last part of the transaction topic's"
        " name, `<kafka.topic.prefix>.<topic.transaction>`.", Group.TOPICS,
    ),
    Option(
        "include.schema.changes", _B, "true", "Whether changes of table structure are published"
        " in the topic `<kafka.topic.prefix>`.", Group.TOPICS,
    ),
    Option(
        "heartbeat.interval.ms", _I, "0", "Period of heartbeat messages, which tell that the"
        " shipper is alive though no table changes; 0: none.", Group.TOPICS, unit="ms",
        high=INT_MAX,
    ),
    Option(
        "heartbeat.topics.prefix", Kind.TOPIC_PART, "__debezium-heartbeat", "First part of the"
        " heartbeat topic's name, `<heartbeat.topics.prefix>.<kafka.topic.prefix>`.",
        Group.TOPICS, aliases=("topic.heartbeat.prefix",),
    ),
    Option(
        "topic.creation.enable", _B, None, "Whether the shipper makes topics that are missing, with"
        " the settings below. Unset: true if any of them is set. false: the broker's"
        " auto.create.topics.enable decides.", Group.TOPICS,
    ),
    Option(
        "topic.creation.default.partitions", _I, "-1", "Partitions of a topic that is made; -1: the"
        " broker's own number.", Group.TOPICS, low=-1, high=INT_MAX,
    ),
    Option(
        "topic.creation.default.replication.factor", _I, "-1", "Its replicas; -1: the broker's own"
        " number.", Group.TOPICS, low=-1, high=32767,
    ),
    Option(
        "topic.creation.groups", Kind.LIST, None, "Names of groups of topics with settings of"
        " their own; the first one that holds a topic counts.", Group.TOPICS,
    ),
    Option(
        "topic.creation.<name>.<property>", _S, None, "For a group: `include`, `exclude` (regular"
        " expressions for whole names of topics, letter case counts), `partitions`,"
        " `replication.factor`. For a group or `default`: any property of topics, such as"
        " `cleanup.policy`.", Group.TOPICS,
    ),
    # -- format of messages
    Option(
        "tombstones.on.delete", _B, "true", "Whether each delete is followed by a message without"
        " a value, which lets Kafka forget the key. JDBC sinks need it to delete.", Group.FORMAT,
    ),
    Option(
        "skipped.operations", Kind.CHOICES, "t", "Operations that give no event: c (create), u"
        " (update), d (delete), r (read by a snapshot). Firebird has no truncate (t).",
        Group.FORMAT, allowed=("c", "u", "d", "r", "t", "none"),
    ),
    Option(
        "extended.headers.enabled", _B, "true", "Whether messages carry the"
        " `__debezium.context.*` headers.", Group.FORMAT,
    ),
    Option(
        "provide.transaction.metadata", _B, "false", "Whether BEGIN and END events and the"
        " `transaction` block are published.", Group.FORMAT,
    ),
    Option(
        "transaction.metadata.factory", Kind.SHORT_NAME,
        "io.debezium.pipeline.txmetadata.DefaultTransactionMetadataFactory", "default, or ordered"
        " for transaction_epoch and transaction_rank in the `transaction` block. Any class whose"
        " name ends in OrderedTransactionMetadataFactory means ordered.", Group.FORMAT,
        allowed=("default", "ordered"),
    ),
    Option(
        "schema.name.adjustment.mode", Kind.CHOICE, "none", "How schema names are made safe. avro:"
        " characters that Avro forbids become `_`. avro_unicode: they and `_` become `_uxxxx`."
        " With an Avro converter none acts as avro.", Group.FORMAT,
        allowed=("none", "avro", "avro_unicode"),
    ),
    Option(
        "field.name.adjustment.mode", Kind.CHOICE, "none", "The same for field names. Two columns"
        " of a table whose names become one are an error.", Group.FORMAT,
        allowed=("none", "avro", "avro_unicode"),
    ),
    Option(
        "sanitize.field.names", _B, None, "Older form of `field.name.adjustment.mode: avro`. Unset:"
        " true if a converter is Avro; false leaves names as they are even then.", Group.FORMAT,
    ),
    # -- converters
    Option(
        "key.converter", Kind.CONVERTER, JSON_CONVERTER, "How keys are written: json, avro, their"
        " Java classes, or the dotted path of a Python class of yours.", Group.CONVERTERS,
    ),
    Option(
        "value.converter", Kind.CONVERTER, JSON_CONVERTER, "How values are written.",
        Group.CONVERTERS,
    ),
    Option(
        "key.converter.schemas.enable", _B, "true", "Whether JSON keys carry their schema beside"
        " the payload.", Group.CONVERTERS,
    ),
    Option(
        "value.converter.schemas.enable", _B, "true", "Whether JSON values carry their schema"
        " beside the payload.", Group.CONVERTERS,
    ),
    Option(
        "header.converter", Kind.SHORT_NAME, "simple", "How headers are written. simple: as Kafka"
        " Connect's SimpleHeaderConverter does, by which a Connect with default settings reads"
        " them. json: as its JsonConverter does, each with its schema. The Java classes' names do"
        " too. See [events.md](events.md#headers).", Group.CONVERTERS, allowed=("simple", "json"),
    ),
    Option(
        "key.converter.<property>", _S, None, "Any other property of the key's converter; see"
        " below.", Group.CONVERTERS,
    ),
    Option(
        "value.converter.<property>", _S, None, "Any other property of the value's converter.",
        Group.CONVERTERS,
    ),
    # -- transforms
    Option(
        "transforms", Kind.LIST, None, "Names of the transforms that messages pass, in this"
        " order.", Group.TRANSFORMS,
    ),
    Option(
        "transforms.<name>.<parameter>", _S, None, "`type` and parameters of the transform of that"
        " name.", Group.TRANSFORMS,
    ),
    Option(
        "predicates", Kind.LIST, None, "Names of the predicates that transforms refer to.",
        Group.TRANSFORMS,
    ),
    Option(
        "predicates.<name>.<parameter>", _S, None, "`type` and parameters of the predicate of that"
        " name.", Group.TRANSFORMS,
    ),
    # -- filters
    Option(
        "table.include.list", Kind.PATTERNS, None, "Capture only these of the published tables."
        " Matched against `<database path>.<table>`.", Group.FILTERS,
        aliases=("table.whitelist",),
    ),
    Option(
        "table.exclude.list", Kind.PATTERNS, None, "Capture all published tables but these; wins"
        " over table.include.list.", Group.FILTERS, aliases=("table.blacklist",),
    ),
    Option(
        "column.include.list", Kind.PATTERNS, None, "Keep only these columns in the value; key"
        " columns always stay in the key. Matched against `<database path>.<table>.<column>`.",
        Group.FILTERS, aliases=("column.whitelist",),
    ),
    Option(
        "column.exclude.list", Kind.PATTERNS, None, "Leave these columns out of the value; wins"
        " over column.include.list.", Group.FILTERS, aliases=("column.blacklist",),
    ),
    Option(
        "message.key.columns", Kind.MESSAGE_KEYS, None, "Own message keys, in place of the primary"
        " or unique key: regular expressions for the table's identifier and for its columns, which"
        " also may be several, separated by commas.", Group.FILTERS,
    ),
    # -- form of values
    Option(
        "decimal.handling.mode", Kind.CHOICE, "precise", "Form of NUMERIC, DECIMAL, INT128 and"
        " DECFLOAT values.", Group.VALUES, allowed=("precise", "double", "string"),
    ),
    Option(
        "decimal.int128.precision", Kind.CHOICE, "38", "Digits that INT128, and NUMERIC and"
        " DECIMAL of more than 18, declare as decimals. They hold 39, but Spark, Arrow, Flink and"
        " Iceberg take 38: with these a number of 39 is an event that can't be sent.",
        Group.VALUES, allowed=("38", "39"),
    ),
    Option(
        "time.precision.mode", Kind.CHOICE, "adaptive", "Form of dates and times.", Group.VALUES,
        allowed=("adaptive", "adaptive_time_microseconds", "connect", "isostring"),
    ),
    Option(
        "binary.handling.mode", Kind.CHOICE, "bytes", "Form of OCTETS columns and blobs that are"
        " not text.", Group.VALUES, allowed=("bytes", "base64", "base64-url-safe", "hex"),
    ),
    Option(
        "toasted.value.placeholder", Kind.PLACEHOLDER, "__debezium_unavailable_value",
        "Stands for a blob or array whose content could not be read, or is too large"
        " (`event.oversized.value`); text, or `hex:` and hexadecimal digits.",
        Group.VALUES, aliases=("unavailable.value.placeholder",),
    ),
    Option(
        "include.unknown.datatypes", _B, "false", "Whether columns of a type that cannot be"
        " decoded are kept as raw bytes instead of being left out with a warning.", Group.VALUES,
    ),
    Option(
        "connector.charset.none", Kind.CHARSET, "UTF-8", "Character set of text in columns of"
        " CHARACTER SET NONE; what cannot be decoded becomes the placeholder.", Group.VALUES,
    ),
    Option(
        "schema.refresh.mode", Kind.CHOICE, "columns_diff", "Accepted, both values act alike: each"
        " event has the structure that its table had when it was written.", Group.VALUES,
        allowed=("columns_diff", "columns_diff_exclude_unchanged_toast"),
    ),
    # -- masks
    Option(
        "column.mask.with.<n>.chars", Kind.PATTERNS, None, "Replace the text of these columns by n"
        " asterisks; 0 gives an empty text.", Group.MASKS, high=MASK_MAX,
    ),
    Option(
        "column.mask.hash.v2.<algorithm>.with.salt.<salt>", Kind.PATTERNS, None, "Replace the text"
        " of these columns by a hash of the salt and the text's UTF-8 bytes, as hexadecimal"
        " digits.", Group.MASKS,
    ),
    Option(
        "column.mask.hash.<algorithm>.with.salt.<salt>", Kind.PATTERNS, None, "The same, of the"
        " text as Java serialises it.", Group.MASKS,
    ),
    Option(
        "column.truncate.to.<n>.chars", Kind.PATTERNS, None, "Cut the text of these columns to n"
        " characters.", Group.MASKS, low=1, high=INT_MAX,
    ),
    Option(
        "column.propagate.source.type", Kind.PATTERNS, None, "Tell type, length, scale and name of"
        " these columns in the parameters of their fields.", Group.MASKS,
    ),
    Option(
        "datatype.propagate.source.type", Kind.PATTERNS, None, "The same, chosen by type: matched"
        " against `<database path>.<table>.<TYPE NAME>`.", Group.MASKS,
    ),
    # -- converters of columns
    Option(
        "converters", Kind.LIST, None, "Names of your own column converters.",
        Group.COLUMN_CONVERTERS,
    ),
    Option(
        "<converter>.<parameter>", _S, None, "`type`, the dotted path of a Python class, and"
        " parameters of a converter named in `converters`.", Group.COLUMN_CONVERTERS,
    ),
    # -- shipping
    Option(
        "event.processing.failure.handling.mode", Kind.CHOICE, "fail", "What the shipper does with"
        " an event that it cannot process. fail: it keeps the journal and stops shipping that"
        " database, but not for a table without a topic. warn, skip: it goes on without the event,"
        " whose journal waits in the quarantine; warn logs each event, skip each journal.",
        Group.SHIPPING, allowed=("fail", "warn", "skip"),
    ),
    Option(
        "event.oversized.value", Kind.CHOICE, "quarantine", "What becomes of a value that is too"
        " large for a message. quarantine: its event cannot be processed. placeholder: it carries"
        " the text of `toasted.value.placeholder`, where its type can carry a text, and a header"
        " says so.", Group.SHIPPING, allowed=("quarantine", "placeholder"),
    ),
    Option(
        "poll.interval.ms", _I, "500",
        "Longest wait of the idle shipper for a notification of new journals.",
        Group.SHIPPING, unit="ms", low=1, high=INT_MAX,
    ),
    Option(
        "max.batch.size", _I, "2048", "Changes of one database that are handed to the producer"
        " before the next database has its turn.", Group.SHIPPING, low=1, high=INT_MAX,
    ),
    Option(
        "max.queue.size", _I, "20240", "Messages that may wait in the producer until Kafka"
        " acknowledges them; reading pauses then. kafka.producer.queue.buffering.max.messages goes"
        " before it.", Group.SHIPPING, low=1, high=10_000_000,
    ),
    Option(
        "max.queue.size.in.bytes", _I, "0", "The same limit in bytes, rounded up to KiB; 0: 64 MiB."
        " kafka.producer.buffer.memory goes before it.", Group.SHIPPING, unit="bytes",
        high=INT_MAX * 1024,
    ),
    Option(
        "errors.max.retries", _I, "-1",
        "How many consecutive retries follow a transient error; delivery.timeout.ms without"
        " any answer counts as one. Then shipping of the database is paused until"
        " `firebird-cdc journal retry` or a restart of the shipper. -1: no limit.",
        Group.SHIPPING, low=-1, high=INT_MAX,
    ),
    # -- attachment
    Option(
        "database.hostname", _S, None, "Server through which the shipper attaches to databases."
        " Unset: the shipper attaches to the file itself, which a running Super server refuses.",
        Group.ATTACHMENT,
    ),
    Option(
        "database.port", _I, "3050", "Its port.", Group.ATTACHMENT, low=1, high=65535,
    ),
    Option(
        "database.user", _S, None, "Its user. Unset: the environment's ISC_USER.",
        Group.ATTACHMENT,
    ),
    Option(
        "database.password", Kind.PASSWORD, None, "The user's password, or where it is"
        " ([secrets](#secrets)); looked up at each use.", Group.ATTACHMENT,
    ),
    Option(
        "database.password.file", Kind.FILE, None, "A file that holds the password, in place of"
        " `database.password`; read at each use.", Group.ATTACHMENT,
    ),
    Option(
        "database.client.library", Kind.FILE, None, "Firebird's client library, libfbclient.so.2."
        " Unset: looked for beside this file, in $FIREBIRD and among the system's libraries.",
        Group.ATTACHMENT,
    ),
    Option(
        "database.initial.statements", _S, None, "SQL that is run after each connect, several"
        " statements with `;` between them; `;;` stands for one that belongs to a statement.",
        Group.ATTACHMENT,
    ),
    # -- canary
    Option(
        "connector.canary.tables", Kind.LIST, None,
        "Canary tables, at most one per database. The shipper writes into them periodically,"
        " and raises an alarm if a write does not arrive in the journals. Each as `<database"
        " path>.<table>`; see below.", Group.CANARY,
    ),
    Option(
        "connector.canary.interval.ms", _I, "60000", "How often it writes.", Group.CANARY,
        unit="ms", low=100, high=INT_MAX,
    ),
    Option(
        "connector.canary.timeout.ms", _I, "30000",
        "How long a write may take to arrive in the journals, from its commit.", Group.CANARY,
        unit="ms", low=100, high=INT_MAX,
    ),
    *SNAPSHOT_OPTIONS,
    # -- monitoring
    Option(
        "metrics.port", _I, "0", "Port at which the shipper shows its metrics, its health and the"
        " status page; 0: nowhere. See [monitoring.md](monitoring.md).",
        Group.MONITORING, high=65535,
    ),
    Option(
        "metrics.host", _S, "127.0.0.1", "Address or name of this machine for that port. Whoever"
        " can reach it can read all that it shows: names of tables, counts, paths.",
        Group.MONITORING,
    ),
    Option(
        "custom.metric.tags", Kind.METRIC_TAGS, None, "Labels on all metrics, as `k1=v1,k2=v2`.",
        Group.MONITORING,
    ),
    # -- options that cannot apply
    *_never(
        "connector.class tasks.max plugin.path offset.flush.interval.ms",
        "it belongs to Kafka Connect; this connector runs inside each database server",
    ),
    *_never(
        "header.converter.schemas.enable",
        "header.converter: simple writes no schemas, and json always does",
    ),
    *_never("name", "it belongs to Kafka Connect; the name is connector.name"),
    *_never(
        "plugin.name slot.name slot.drop.on.stop slot.stream.params slot.max.retries"
        " slot.retry.delay.ms publication.name",
        "Firebird has no slots or decoders, and one publication per database: choose tables with"
        " ALTER DATABASE INCLUDE TABLE ... TO PUBLICATION",
    ),
    *_never(
        "database.server.name", "the logical name of the server is kafka.topic.prefix",
    ),
    *_never(
        "database.dbname vitess.keyspace",
        "databases are chosen by the database sections of replication.conf",
    ),
    *_never(
        "schema.whitelist schema.blacklist schema.include.list schema.exclude.list",
        "Firebird has no SQL schemas; use table.include.list or table.exclude.list",
    ),
    *_never(
        "database.sslmode database.sslcert database.sslkey database.sslpassword"
        " database.sslrootcert database.tcpKeepAlive driver.sendStringParametersAsUnicode",
        "it is a setting of another database's driver; Firebird encrypts by WireCrypt in"
        " firebird.conf",
    ),
    *_never(
        "hstore.handling.mode interval.handling.mode bigint.unsigned.handling.mode",
        "Firebird has no such type",
    ),
    *_never(
        "vitess.shard vitess.gtid vitess.tablet.type vitess.stop_on_reshard"
        " vitess.stream_keyspace_heartbeats vitess.database.<setting> vitess.vtctld.<setting>"
        " vitess.keepalive.interval.ms vitess.grpc.headers"
        " vitess.grpc.max_inbound_message_size vitess.offset.storage.per.task"
        " vitess.offset.storage.task.key.gen vitess.prev.num.tasks",
        "it belongs to Vitess; Firebird has no shards and no tasks to spread",
    ),
    *_never(
        "mongodb.hosts mongodb.members.auto.discover capture.mode",
        "it belongs to MongoDB; Firebird always gives the whole row before a change",
    ),
    *_never(
        "collection.include.list", "it belongs to MongoDB; use table.include.list",
    ),
)
# fmt: on

BY_NAME = {option.name: option for option in OPTIONS}
ALIASES = {alias: option for option in OPTIONS for alias in option.aliases}
_FAMILIES = tuple(
    option for option in OPTIONS if option.is_family and not option.name.startswith("<")
)


def find_option(key: str) -> Option | None:
    """Return the option that KEY sets, by its name, an alias or as one of a family."""
    if option := BY_NAME.get(key) or ALIASES.get(key):
        return option
    return next((option for option in _FAMILIES if option.matches(key)), None)
