"""Writes docs/reference.md from the tables that the loader works with.

``python -P scripts/reference_page.py > docs/reference.md``
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from firebird_cdc.config import avro, librdkafka, producer, snapshots
from firebird_cdc.config.logging import OPTIONS as LOGGING_OPTIONS
from firebird_cdc.config.logging import LoggingOptions
from firebird_cdc.config.options import (
    AVRO_CONVERTER,
    INT_MAX,
    JSON_CONVERTER,
    LONG_MAX,
    OPTIONS,
    Group,
    Kind,
    Option,
)
from firebird_cdc.config.values import ALGORITHMS
from firebird_cdc.journal.events.topic_encoding import ESCAPE, REPLACE, TRANSLITERATE, topic_of

_INTRODUCTION = """\
# Options

<!-- Made from config/options.py and its neighbours by
`python -P scripts/reference_page.py`; a test compares the two. -->

## The file

The connector reads one YAML file of flat dotted keys, `reddatabase.connector.yaml`. Which one
counts, from strongest to weakest:

1. the environment variable `FIREBIRD_CONNECTOR_CONFIG`;
2. `ConnectorConfig` in the plugin's Config section of `plugins.conf`;
3. a line `-Dfirebird.connector.config=<path>` in `jvm.args` in the server directory;
4. `reddatabase.connector.yaml` in the server directory.

A relative path starts at the server directory. The file has to be UTF-8. The commands look there
too, unless `--config FILE` names one; the server is the one that `--server ROOT` or the environment
variable `FIREBIRD` names, or else the only one on the machine.

- A key may appear once. An unknown key, a missing required one or a value out of range is an
  error; all errors of a file are reported at once, each with its line. `firebird-cdc check`
  shows them without a server. One in `connector.journal.*`, `connector.capture.*` or a list that
  includes or excludes tables or columns keeps the server from capturing, so commits are refused or
  leave gaps; any other keeps only the shipper from running.
- Numbers and booleans may stand in quotes. Where some words are allowed, their case is free.
- A list is text separated by commas, or a YAML list. `\\,` stands for a comma inside an item of
  such a text; a pattern with a comma, such as `t{1,3}`, is best written in a YAML list.
- A regular expression that begins with `*` is read as if it began with `.*`, and a warning shows
  the line to write. Any other value that begins with `*` must stand in quotes, or YAML reads it as
  an alias.
- A regular expression has to match a whole name. What has no `.*`, `[.]` or `\\.` in it matches the
  name that it is, too, letter for letter: `/data/shop (1).fdb.ORDERS`. A `$` with more text behind
  it, as in `.*[.]PAY$CARD`, stands for itself; at the end of a pattern write `[$]`.

Kinds of values: *long* reaches to 9223372036854775807, *int* to 2147483647.

### From the environment

A variable `FIREBIRD_CDC_OPTION_<NAME>` gives an option, with `__` for each dot:
`FIREBIRD_CDC_OPTION_KAFKA__TOPIC__PREFIX=shop`. It counts before the file, which has to be there
all the same. A name without small letters stands for small ones; one with some is taken as it is,
as `transforms__Route__type`. An empty value is as if the option were not set, whatever the file
says. A name that is no option is refused, as in the file, and messages name the variable.

Each process heeds its own environment. What server and shipper both need, such as
`connector.journal.directory` and the filters, give to both; a shipper that the server starts has
the server's. Commands see that of your shell. `check` and `status` compare the files that
processes have read, not what the environment gave them.

### Secrets

Options below `kafka.producer.`, `signal.consumer.`, `key.converter.` and `value.converter.` that
may be secret, and `database.password`, take a reference in place of what they would hold, or of a
part of it:

| Reference | Stands for |
|---|---|
| `${env:NAME}` | the variable NAME of the environment of the process that reads the file |
| `${file:/PATH}` | the text of a file, without the end of its last line |

The shipper looks them up when it starts, and the password of the database at each use. Where one
is missing it ends with exit code 2 and names it; a server records changes all the same, as it needs
none of them, and commands warn. No message, log or status shows a secret. A reference in any other
option is an error, as it would be taken literally; [the environment](#from-the-environment) can
give that option. Parameters of transforms, predicates and your own classes stay as they are.
"""

_FILTERS = """
A table is captured only if it is in the database's publication
(`ALTER DATABASE INCLUDE TABLE ... TO PUBLICATION`); the lists narrow that set and never widen it.
A pattern has to match the whole identifier, in any case of letters: `.*table1` selects `TABLE1`
of every database. The identifier holds the real path with its slashes; a plain path works as a
pattern, too, whatever is in it. Mind that `.*id` also matches `PAID`:
`.*[.]id` is the column `ID` alone. When both lists of a pair are set, the exclude list alone
decides, and a warning says so. Tables that begin with `RDB$`, `MON$` or `SEC$` are never captured.
"""

_KAFKA = f"""
Everything under `kafka.producer.` goes to the Kafka client without that prefix. The client is
librdkafka {librdkafka.VERSION}: all its
[properties](https://github.com/confluentinc/librdkafka/blob/master/CONFIGURATION.md) for
producers can be set. Configurations of the Java client load too: each of its properties has a
counterpart, or is named below.

- A number beyond librdkafka's range is narrowed, with a warning (`retry.backoff.ms`, for
  example, ends at 300000 there).
- `enable.idempotence` is true and `acks` all unless you set them. A value that cannot go with
  idempotence (`acks` other than all, `retries: 0`, more than 5 requests in flight) is replaced,
  with a warning; it is an error if you set `enable.idempotence: true` or a `transactional.id`.
- With a `transactional.id`, `transaction.timeout.ms` is raised to `delivery.timeout.ms`, up to the
  900000 ms that brokers allow; a message cannot outlive its transaction.
- The partitioner is `murmur2_random`, which puts a key where the Java client would.
- `compression.type` is `lz4` unless you set it. Uncompressed, an event with its schema takes the
  client several times as long.
- Unless you set `linger.ms`, a batch waits up to 5 ms to be filled while there is more to send, and
  goes at once when there isn't. A value of yours is always waited for.
- If you do not set `delivery.timeout.ms`, it is raised to `request.timeout.ms` + `linger.ms` where
  they need more than its default.

Java properties that have another name or unit here:
"""

_TOPICS = """\
How `topic.name.encoding` writes the topics of tables of `/srv/fb/shop.fdb`, with the prefix `shop`:
"""

_TOPICS_TOO = """\
- `replace`: in the path `\\`, `/` and `:` become `_`, and so does every other character of path and
  table that Kafka forbids.
- `transliterate`: the same, but a path or table with a character that Kafka forbids (in the path
  beyond those three) is written in Latin letters, with a hash of eight digits behind it. A topic of
  more than 249 characters is cut, with such a hash at the end.
- `escape`: digits and letters of ASCII stay, in a table also `_`. `/` becomes `--`, `.` becomes
  `-.`, and everything else, `-` and the `_` of a path included, becomes `-` and the four
  hexadecimal digits of each of its UTF-16 units. So no two tables have one topic, not in a broker's
  metrics either, where `.` and `_` are the same. Letter case counts, as it does for Kafka. A topic
  of more than 249 characters is cut, with `-h` and a hash of 32 digits at the end. With a
  `topic.delimiter` that begins with neither `.` nor `_`, or has a `-`, every topic ends so.

Names of schemas have path and table in the same form; with `replace` the table is as it is there.
Changing the option moves later events of all tables whose topic's name it changes to new topics:
[Topics](topics.md#names) tells what to do then.

A table has no topic if that would be the topic of another table, of transactions, schema changes,
heartbeats or offsets, or would differ from such a topic in `.` and `_` only, which Kafka refuses
to create, or would have more than 249 characters. Of two tables the one that came first keeps the
topic. Events of the other one [are quarantined](operations.md#a-table-without-a-topic), whatever
`event.processing.failure.handling.mode` says, and all other tables go on. `firebird-cdc check
--database PATH` finds such tables beforehand.

With `topic.naming.strategy: table` all databases of the server share the names of their tables.
The transaction topic is `<kafka.topic.prefix>`, `topic.delimiter`, `topic.transaction`.

The options of topic creation are those of Kafka Connect (KIP-158). What they do, and what order
messages have in topics of several partitions, is on the page [Topics](topics.md).
"""

_CANARY = """\
The table needs a key column `ID` and a column `WRITTEN_AT`, and has to be in the publication.
[Operations](operations.md#the-canary) has the statements that make it, the rights that the user
needs, and what the alarm means. A table's name is taken in capitals unless it stands in double
quotes: `connector.canary.tables: /data/shop.fdb.cdc_canary, /data/crm.fdb."Canary"`.
"""

_ATTACHMENT = """\
The shipper attaches to a database only to write into a [canary](#canary), and detaches at once.
It does so on the machine of the server, because it works on the server's journals: with a running
server set `database.hostname: localhost`. The configuration file should be readable by the
server's user only if a password stands in it; `database.password.file` and `${env:NAME}` keep it
elsewhere.
"""

_SNAPSHOTS = """\
Tables in `snapshot.select.statement.overrides` and `signal.data.collection` are written like those
of [the canary](#canary): in capitals unless they stand in double quotes. The same form, with the
table as it is written in the list, stands in the name of the option with its query. The path may
lead through links. A query for a table that is not captured, or of a database that is not known, is
a warning in `status` when an initial or blocking snapshot is taken: the table that was meant is
sent with all rows.

```yaml
snapshot.select.statement.overrides: /data/shop.fdb.orders
snapshot.select.statement.overrides./data/shop.fdb.orders: SELECT * FROM ORDERS WHERE OPEN = 'Y'
```
"""

_SIGNALS = """\
Of a login and of certificates of the producer (`kafka.producer.security.protocol`, `.sasl.*`,
`.ssl.*`) the signal reader makes use, too, unless `signal.kafka.bootstrap.servers` names other
brokers; `signal.consumer.*` goes before them. Without effect, with a warning, are properties that
only producers have, such as `acks` and `request.timeout.ms`, and:
"""

_CONVERTERS = f"""\
`json` is `{JSON_CONVERTER}`, `avro` is `{AVRO_CONVERTER}`.
Any other dotted name is a Python class of yours, made without arguments. Its `configure(options)`
gets what stands below `key.converter.` as it is written, and `converter.type`, which is `key` or
`value`. Its `from_connect(topic, schema, value)` returns the bytes, None for null only; schema
and value are as [a transform](transforms.md#a-transform-of-your-own) has them. It says by
`carries_non_finite = True` that it can write NaN and infinities. A property that the chosen
converter does not know is named with a warning.

The Avro converter knows these properties, each below `key.converter.` or `value.converter.`:
"""

_TRANSFORMS = """\
`transforms: a,b` names transforms in the order in which a message passes them;
`transforms.a.type` is the kind of each, and whatever else begins with `transforms.a.` are its
parameters. A name without a type is an error; parameters of a name that is not listed have no
effect, and a warning says so. `predicates` is of the same form. Types and parameters are on the
page [Transforms and custom converters](transforms.md).
"""

_MASKS = f"""\
The patterns have to match the whole of `<database path>.<table>.<column>`, in any case of letters.

- Only text is changed: `CHAR`, `VARCHAR` and `BLOB SUB_TYPE TEXT`, but not of `CHARACTER SET
  OCTETS`, and no arrays of texts. Key columns stay as they are, in the key and in the value. The
  log names each column that a rule matches and that stays as it is; `column.exclude.list` leaves
  such a one out of the value.
- A `CHAR` is hashed with the blanks that pad it.
- Where several rules match a column, the one that tells least counts: a mask, else a hash, else
  the shortest truncation; of several masks or hashes the first in the file.
- A mask stands for NULL too; a hash or truncation of NULL is NULL.
- Of a `BLOB` that is masked or truncated no more is read than is sent, so it may be larger than a
  message; one that is hashed may have 16 MiB.
- Algorithms, by Java's names:
  {ALGORITHMS}.
- A hash is cut to the length of its column, so that it fits into a copy of the table. Salts are
  secrets: messages show `<salt>` in their place. Use the v2 form if you hash the same values
  elsewhere. The other one hashes what Java's `ObjectOutputStream` writes of the text: it gives
  what other Debezium connectors give.
- The field's schema tells of a mask or hash by the parameter `masked` (`true`), of a truncation by
  `truncateLength`.
- A propagated type stands in the field's parameters as `__debezium.source.column.type`, `.length`
  and `.scale` where the type has them, and `.name`. The length of a `NUMERIC` is its precision.
- A type's name is that of CREATE TABLE without length and character set: `VARCHAR`, `BLOB`,
  `DOUBLE PRECISION`, `TIMESTAMP WITH TIME ZONE`; `BINARY` and `VARBINARY` for `CHARACTER SET
  OCTETS`, `ARRAY` for any array, and of a domain the type that it stands for.
"""

_COLUMN_CONVERTERS = """\
`converters: isbn` declares a converter; `isbn.type` is the dotted path of its Python class, and
whatever else begins with `isbn.` are its parameters. How such a class is written:
[A converter of your own](transforms.md#a-converter-of-your-own).
"""

_MESSAGE_KEYS = """
`message.key.columns` holds parts separated by `;`. In each, the last `:` separates the table from
its columns, and commas separate columns. All are regular expressions, in any case of letters;
inside of brackets and behind a `\\` these characters separate nothing. `.*[.]orders:customer,no`
and `C:\\\\data\\\\crm[.]fdb[.]orders:(id|no)` are examples. The key has the columns in the order of
the parts. A table that no part matches keeps its own key.
"""


def render() -> str:
    """Return the text of docs/reference.md."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield _INTRODUCTION
    for group in Group:
        options = [option for option in OPTIONS if option.group is group]
        yield f"## {group.value}\n"
        if group is Group.NEVER:
            yield from _never(options)
            continue
        yield from _table(
            ("Option", "Value", "Default", "Meaning"), (option_row(option) for option in options)
        )
        if group is Group.KAFKA:
            yield from _kafka()
        if group is Group.CONVERTERS:
            yield _CONVERTERS
            yield from _avro()
        if group is Group.TOPICS:
            yield from _topics()
        if group in _NOTES:
            yield _NOTES[group]
        if group is Group.SIGNALS:
            yield from _table(
                ("`signal.consumer.*`", "Why"),
                ((f"`{name}`", why) for name, why in snapshots.WITHOUT_EFFECT.items()),
            )
    yield from _logging()


_NOTES = {
    Group.TOPICS: _TOPICS_TOO,
    Group.TRANSFORMS: _TRANSFORMS,
    Group.FILTERS: _FILTERS + _MESSAGE_KEYS,
    Group.MASKS: _MASKS,
    Group.COLUMN_CONVERTERS: _COLUMN_CONVERTERS,
    Group.ATTACHMENT: _ATTACHMENT,
    Group.CANARY: _CANARY,
    Group.SNAPSHOTS: _SNAPSHOTS,
    Group.SIGNALS: _SIGNALS,
}


def option_row(option: Option) -> tuple[str, ...]:
    """Return name, value, default and meaning of OPTION, in Markdown."""
    meaning = option.meaning
    if option.aliases:
        names = ", ".join(f"`{alias}`" for alias in option.aliases)
        meaning = f"{meaning} Other name: {names}."
    if option.required:
        default = "required"
    else:
        default = "unset" if option.default is None else f"`{option.default}`"
    return f"`{option.name}`", _value(option), default, meaning


def _value(option: Option) -> str:
    if option.allowed:
        values = ", ".join(f"`{value}`" for value in option.allowed)
        return f"list of {values}" if option.kind is Kind.CHOICES else values
    if option.kind is Kind.INTEGER:
        high = {LONG_MAX: "long", INT_MAX: "int"}.get(option.high, str(option.high))
        return f"{option.low} to {high}{', ' + option.unit if option.unit else ''}"
    if option.kind is Kind.BOOLEAN:
        return "`true`, `false`"
    return str(option.kind.value)


def _topics() -> Iterator[str]:
    yield _TOPICS
    tables = ("ORDER_ITEMS", "Заказы")
    yield from _table(
        ("", *(f"`{table}`" for table in tables)),
        (
            (
                f"`{each}`",
                *(f"`{topic_of(each, 'shop', '/srv/fb/shop.fdb', table)}`" for table in tables),
            )
            for each in (REPLACE, TRANSLITERATE, ESCAPE)
        ),
    )


def _kafka() -> Iterator[str]:
    yield _KAFKA
    yield from _table(
        ("Java", "librdkafka", "How"),
        ((f"`{name}`", _code(to), how) for name, (to, how) in sorted(producer.MAPPED.items())),
    )
    yield "Used by the shipper itself: " + ", ".join(f"`{n}`" for n in producer.CONSUMED) + ".\n"
    yield "Without effect here, with a warning:\n"
    yield from _table(
        ("Property", "Why"),
        ((f"`{name}`", why) for name, why in sorted(producer.WITHOUT_EFFECT.items())),
    )
    yield "Refused:\n"
    yield from _table(
        ("Property", "Why"), ((f"`{name}`", why) for name, why in sorted(producer.REFUSED.items()))
    )


def _avro() -> Iterator[str]:
    yield from _table(
        ("Property", "Default", "Meaning"),
        (
            (f"`{name}`", f"`{default}`" if default else "unset", meaning)
            for name, (default, meaning) in avro.PROPERTIES.items()
        ),
    )
    yield "Without effect here, with a warning:\n"
    yield from _table(
        ("Property", "Why"),
        ((f"`{name}`", why) for name, why in sorted(avro.WITHOUT_EFFECT.items())),
    )


def _code(names: str) -> str:
    return ", ".join(f"`{name}`" for name in names.split(", "))


def _never(options: Iterable[Option]) -> Iterator[str]:
    yield "They belong to other connectors. Each loads with a warning that says so.\n"
    reasons: dict[str, list[str]] = {}
    for option in options:
        reasons.setdefault(option.instead, []).append(f"`{option.name}`")
    yield from _table(
        ("Options", "Why, and what to use"),
        ((", ".join(names), why) for why, names in reasons.items()),
    )


def _logging() -> Iterator[str]:
    yield """\
## Logging

A second YAML file sets up the log of the plugin and of the shipper. Which one counts, from
strongest to weakest: the environment variable `FIREBIRD_CONNECTOR_LOGGING`, `LoggingConfig` in
`plugins.conf`, a line `-Dlogback.configurationFile=<path>` in `jvm.args`. A Logback file is
answered, in the log, with the YAML lines to write instead. If the file has errors, they are
logged and the defaults apply; if the log file cannot be opened, the log goes to stderr. What is
changed in the YAML file has effect within a second or so, without a restart. More on the log is in
[operations.md](operations.md#the-log).
"""
    defaults = {name: getattr(LoggingOptions(), name.replace(".", "_")) for name in LOGGING_OPTIONS}
    yield from _table(
        ("Option", "Default", "Meaning"),
        ((f"`{name}`", f"`{defaults[name]}`", text) for name, text in LOGGING_OPTIONS.items()),
    )


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(row) + " |"
    yield ""


if __name__ == "__main__":
    sys.stdout.write(render())
