"""The part of the table of options that is about snapshots, signals and notifications."""

from __future__ import annotations

from firebird_cdc.config.option import INT_MAX, Group, Kind, Option

_S = Kind.STRING
_I = Kind.INTEGER
_B = Kind.BOOLEAN
_CONFIGURED = "With `snapshot.mode: configuration_based`: whether "

# fmt: off
SNAPSHOT_OPTIONS: tuple[Option, ...] = (
    # -- snapshots
    Option(
        "snapshot.mode", Kind.CHOICE, "initial", "When existing rows are sent. initial, exported:"
        " once for each database of which nothing was sent yet. always: at each start."
        " initial_only: as initial, and no change after it. no_data, schema_only, recovery: as"
        " never. when_needed: as initial, and where changes were lost;"
        " when_needed_no_data: the same without rows. never: not at all. configuration_based,"
        " custom: as the options below say.",
        Group.SNAPSHOTS,
        allowed=(
            "initial", "exported", "always", "initial_only", "no_data", "schema_only", "recovery",
            "when_needed", "when_needed_no_data", "never", "configuration_based", "custom",
        ),
    ),
    Option(
        "snapshot.mode.configuration.based.snapshot.data", _B, "false", _CONFIGURED + "the first"
        " snapshot sends rows.", Group.SNAPSHOTS,
    ),
    Option(
        "snapshot.mode.configuration.based.snapshot.schema", _B, "false", "Accepted, and not"
        " needed: each event has the structure of its table.", Group.SNAPSHOTS,
    ),
    Option(
        "snapshot.mode.configuration.based.start.stream", _B, "false", _CONFIGURED + "changes are"
        " sent after it.", Group.SNAPSHOTS,
    ),
    Option(
        "snapshot.mode.configuration.based.snapshot.on.schema.error", _B, "false", "Accepted, and"
        " not needed: there is no history of structures that could be lost.", Group.SNAPSHOTS,
    ),
    Option(
        "snapshot.mode.configuration.based.snapshot.on.data.error", _B, "false", _CONFIGURED
        + "rows are sent again where changes were lost.", Group.SNAPSHOTS,
    ),
    Option(
        "snapshot.custom.class", Kind.CLASS, None, "With `snapshot.mode: custom` or"
        " `snapshot.query.mode: custom`: the dotted path of your own snapshot policy, a Python"
        " class.", Group.SNAPSHOTS, aliases=("snapshot.mode.custom.name",),
    ),
    Option(
        "snapshot.include.collection.list", Kind.PATTERNS, None, "Send existing rows of these"
        " captured tables only; unset: of all. Incremental snapshots have lists of their own."
        " Matched against `<database path>.<table>`.", Group.SNAPSHOTS,
    ),
    Option(
        "snapshot.select.statement.overrides", Kind.LIST, None, "Tables whose rows a query of"
        " yours gives, each as `<database path>.<table>`. Not for incremental snapshots.",
        Group.SNAPSHOTS,
    ),
    Option(
        "snapshot.select.statement.overrides.<table>", _S, None, "That query. It is run as it is,"
        " by one reader, and has to give all stored columns of the table, also those that the"
        " options leave out of events.", Group.SNAPSHOTS,
    ),
    Option(
        "snapshot.query.mode", Kind.CHOICE, "select_all", "What is read of the other tables."
        " select_all: all rows. custom: what the class of `snapshot.custom.class` says.",
        Group.SNAPSHOTS, allowed=("select_all", "custom"),
    ),
    Option(
        "snapshot.locking.mode", Kind.CHOICE, "none", "Accepted, and not needed: no lock makes"
        " what a snapshot reads more consistent, and none is taken.", Group.SNAPSHOTS,
        allowed=("none", "shared"),
    ),
    Option(
        "snapshot.lock.timeout.ms", _I, "10000", "Accepted, and not needed: there is no lock to"
        " wait for.", Group.SNAPSHOTS, unit="ms", low=1,
    ),
    Option(
        "snapshot.isolation.mode", Kind.CHOICE, "snapshot", "Accepted; all rows of a snapshot are"
        " read as they were at one moment.", Group.SNAPSHOTS, allowed=("snapshot",),
    ),
    Option(
        "snapshot.delay.ms", _I, "0", "Wait before the first snapshot after a start.",
        Group.SNAPSHOTS, unit="ms",
    ),
    Option(
        "snapshot.fetch.size", _I, "10240", "Most rows that a reader hands over at once; it hands"
        " over fewer where they take more than 8 MiB.", Group.SNAPSHOTS, low=1,
        high=INT_MAX,
    ),
    Option(
        "snapshot.max.threads", _I, "1", "Processes that read the rows of an initial or blocking"
        " snapshot at the same time, each with attachments of its own. Incremental ones have one.",
        Group.SNAPSHOTS, low=1, high=1024,
    ),
    Option(
        "snapshot.max.threads.multiplier", _I, "1", "Accepted, and not needed: a table is cut into"
        " parts of `snapshot.fetch.size` rows, and who is free reads the next one.",
        Group.SNAPSHOTS, low=1, high=1024,
    ),
    Option(
        "incremental.snapshot.chunk.size", _I, "1024", "Fewest rows that an incremental snapshot"
        " reads in one go; changes that come meanwhile wait for them.", Group.SNAPSHOTS,
        low=1, high=INT_MAX,
    ),
    Option(
        "incremental.snapshot.watermarking.strategy", Kind.CHOICE, "insert_insert", "Accepted, and"
        " not needed: all values act alike, nothing is written into the database.",
        Group.SNAPSHOTS, allowed=("insert_insert", "insert_delete", "commit_number"),
    ),
    Option(
        "incremental.snapshot.allow.schema.changes", _B, "false", "Accepted, and not needed: tables"
        " may change while an incremental snapshot runs.", Group.SNAPSHOTS,
    ),
    # -- signals
    Option(
        "signal.enabled.channels", Kind.CHOICES, "source", "Where signals are read. source: in the"
        " tables of `signal.data.collection`. kafka: in a topic. file: in a file. See"
        " [signals.md](signals.md).", Group.SIGNALS, allowed=("source", "kafka", "file"),
    ),
    Option(
        "signal.data.collection", Kind.LIST, None, "Signal tables, at most one per database, each"
        " as `<database path>.<table>`; see below.", Group.SIGNALS,
    ),
    Option(
        "signal.poll.interval.ms", _I, "5000", "How often topic and file are looked at.",
        Group.SIGNALS, unit="ms", low=1, high=INT_MAX,
    ),
    Option(
        "signal.file", Kind.FILE, None, "The file of the channel file; it is removed once it was"
        " read.", Group.SIGNALS,
    ),
    Option(
        "signal.kafka.topic", Kind.TOPIC_PART, None, "Signal topic; its first partition is read."
        " Unset: `<kafka.topic.prefix>-signal`.", Group.SIGNALS,
    ),
    Option(
        "signal.kafka.bootstrap.servers", Kind.LIST, None, "Cluster of the signal topic. Unset: the"
        " producer's, with its login and certificates. Those are not used for another cluster.",
        Group.SIGNALS,
    ),
    Option(
        "signal.kafka.groupId", _S, "kafka-signal", "Name with which the signal reader asks the"
        " brokers. No group is joined, and no offset committed: the shipper keeps that itself.",
        Group.SIGNALS,
    ),
    Option(
        "signal.kafka.poll.timeout.ms", _I, "100", "Accepted, and not needed: the shipper never"
        " waits for a signal.", Group.SIGNALS, unit="ms", high=INT_MAX,
    ),
    Option(
        "signal.consumer.<property>", _S, None, "Consumer properties of the signal reader, in the"
        " words of librdkafka or of the Java client; see below.", Group.SIGNALS,
    ),
    # -- notifications
    Option(
        "notification.enabled.channels", Kind.CHOICES, None, "Where the shipper tells how snapshots"
        " go on. sink: in a topic. log: in the log.", Group.NOTIFICATIONS,
        allowed=("sink", "log"),
    ),
    Option(
        "notification.sink.topic.name", Kind.TOPIC_PART, None, "That topic; required with sink.",
        Group.NOTIFICATIONS,
    ),
)
# fmt: on
