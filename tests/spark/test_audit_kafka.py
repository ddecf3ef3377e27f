"""Journals against topics: what was shipped passes, and each planted fault is found alone."""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(1, str(Path(__file__).parents[1] / "engine"))

from capture import Capture, until
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from histories import Action, History, column
from pyspark.sql import DataFrame, Row, SparkSession
from shared_folder import committed_in
from soaked import few_of
from topic_faults import Raw, read_raw, rewrite, write_raw

from firebird_cdc import __version__
from firebird_cdc.config import load_config
from firebird_cdc.demo.kafka import KafkaBroker
from firebird_cdc.demo.processes import Stack
from firebird_cdc.errors import ReplayError
from firebird_cdc.journal.events import source
from firebird_cdc.journal.events.render import Renderer
from firebird_cdc.journal.events.versions import form_of
from firebird_cdc.journal.format import Storage
from firebird_cdc.journal.replay.audit.findings import Comparison
from firebird_cdc.journal.replay.audit.input import open_input
from firebird_cdc.journal.replay.audit.kafka import (
    against_kafka,
    rendered,
    topic_reader,
)
from firebird_cdc.journal.replay.audit.kafka.against_kafka import compare
from firebird_cdc.journal.replay.source.bounds import Bound
from firebird_cdc.journal.shipper import loop

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

T = (column("ID", Storage.INTEGER, key=1), column("N", Storage.INTEGER))
LOG = (column("N", Storage.INTEGER), column("TEXT", Storage.TEXT))
KEYS = 10
"""Each case has so many keys of its own."""


def _fill(folder: Path, database: str, cases: int) -> History:
    """Ten transactions, in which each case has the same changes of keys of its own: inserts,
    updates, a change of the key, deletes; and of a table without a key."""
    history = History(folder, database=database)
    history.define("T", T)
    history.define("LOG", LOG, key_kind=0)

    def commit(*actions: Action) -> None:
        history.commit(
            *(
                (op, table, _shifted(case, before), _shifted(case, after))
                for case in range(cases)
                for op, table, before, after in actions
            ),
            ("c", "LOG", None, (history.sequence, "it is")),
        )

    commit(("c", "T", None, (1, 1)), ("c", "T", None, (2, 1)), ("c", "T", None, (3, 1)))
    for number in range(2, 7):
        commit(("u", "T", (1, number - 1), (1, number)))
    commit(("d", "T", (2, 1), None))
    commit(("c", "T", None, (2, 8)), ("u", "T", (3, 1), (4, 1)))
    commit(("d", "T", (2, 8), None), ("u", "T", (1, 6), (1, 7)))
    commit(("c", "T", None, (2, 9)), ("u", "T", (1, 7), (1, 8)))
    return history


def _shifted(case: int, row: tuple | None) -> tuple | None:
    return None if row is None else (case * KEYS + row[0], *row[1:])


class Case:
    """The messages of one case, among those of its topic."""

    def __init__(self, number: int, raws: list[Raw]) -> None:
        self.number = number
        self.raws = raws

    def find(self, key: int, op: str, number: int) -> int:
        """Return the index of the message of this key, operation and value of N."""
        (found,) = (
            index
            for index, raw in enumerate(self.raws)
            if _is_it(raw, self.number * KEYS + key, op, number)
        )
        return found


def _is_it(raw: Raw, key: int, op: str, number: int) -> bool:
    if raw.key is None or json.loads(raw.key)["payload"] != {"ID": key} or raw.op != op:
        return False
    row = json.loads(raw.value or b"")["payload"]
    return bool((row["after"] or row["before"])["N"] == number)


def _intact(_: Case) -> None:
    pass


def _dropped(case: Case) -> None:
    del case.raws[case.find(1, "u", 4)]


def _delete_dropped(case: Case) -> None:
    del case.raws[case.find(2, "d", 1)]


def _tombstone_dropped(case: Case) -> None:
    del case.raws[case.find(2, "d", 1) + 1]


def _event_dropped(case: Case) -> None:
    at = case.find(2, "d", 8)
    del case.raws[at : at + 2]


def _doubled(case: Case) -> None:
    case.raws.append(case.raws[case.find(1, "u", 4)])


def _swapped(case: Case) -> None:
    raws, one, other = case.raws, case.find(1, "u", 3), case.find(1, "u", 6)
    raws[one], raws[other] = raws[other], raws[one]


def _replaced(case: Case, old: bytes, new: bytes) -> None:
    at = case.find(1, "u", 4)
    raw = case.raws[at]
    assert raw.value is not None
    case.raws[at] = raw._replace(value=raw.value.replace(old, new))


def _altered(case: Case) -> None:
    _replaced(case, b'"N":4', b'"N":44')


def _key_altered(case: Case) -> None:
    at = case.find(1, "u", 4)
    raw = case.raws[at]
    assert raw.key is not None
    case.raws[at] = raw._replace(key=raw.key.replace(b'{"ID":', b'{"ID":77'))


def _foreign(case: Case) -> None:
    key = case.raws[case.find(1, "u", 4)].key
    case.raws.append(Raw(0, key, b'{"hello":1}', []))


def _phantom(case: Case) -> None:
    _phantom_of(case, case.find(1, "u", 4))


def _phantom_of(case: Case, at: int, epoch: int | None = 0) -> None:
    """An event of a journal that is none, as of a transaction that was rolled back; EPOCH None: as
    an earlier version told it."""
    raw = case.raws[at]
    value = json.loads(raw.value or b"")
    source = value["payload"]["source"]
    source |= {"journal": str(uuid.uuid4()), "txId": 4711, "epoch": epoch}
    numbers = [epoch, source["commitSeq"], source["pos"]]
    if epoch is None:
        del numbers[0], source["epoch"]
    source["sequence"] = json.dumps([str(number) for number in numbers], separators=(",", ":"))
    text = json.dumps(value, separators=(",", ":")).encode()
    case.raws.append(raw._replace(value=text))


def _marked(case: Case, header: str, content: dict[str, Any], at: int) -> None:
    raw = case.raws.pop(at)
    case.raws.append(raw._replace(headers=[*raw.headers, (header, json.dumps(content).encode())]))


def _late(case: Case) -> None:
    content = {"set_aside_at": "2026-01-01T00:00:00Z", "reason": "too large"}
    _marked(case, "__firebird_cdc.late", content, case.find(1, "u", 4))


def _repaired(case: Case) -> None:
    """One event was lost, and a later state of its key stands for it."""
    at = case.find(1, "u", 4)
    lost = json.loads(case.raws[at].value or b"")["payload"]["source"]
    place = [0, lost["commitSeq"], lost["pos"]]
    content = {"kind": "current state", "database": lost["db"], "events": [place], "as_of": [0, 10]}
    state = case.raws[case.find(1, "u", 8)]
    assert state.value is not None
    state = state._replace(value=state.value.replace(b'"op":"u"', b'"op":"r"'))
    case.raws.append(state)
    _marked(case, "__firebird_cdc.repair", content, len(case.raws) - 1)
    del case.raws[at]


_4 = {"sequence": 4, "table": "T", "transaction": 1004}

PLANTED: dict[Callable[[Case], None], tuple[str, int, dict[str, Any]] | None] = {
    _intact: None,
    _dropped: ("missing event", 1, _4),
    _delete_dropped: ("missing event", 2, {"sequence": 7}),
    _tombstone_dropped: ("missing event", 2, {"sequence": 7}),
    _event_dropped: ("missing event", 2, {"sequence": 9}),
    _doubled: ("doubled event", 1, _4),
    _swapped: ("order", 1, {"sequence": 3, "transaction": 1003}),
    _altered: ("altered event", 1, _4),
    _key_altered: ("altered event", 1, _4),
    _foreign: ("unknown event", 1, {"sequence": None, "database": None}),
    _phantom: ("unknown event", 1, {"sequence": 4, "transaction": 4711}),
    _late: ("late", 1, _4),
    _repaired: None,
}


def _config(path: Path, broker: KafkaBroker, prefix: str, **options: object) -> Path:
    settings = {
        "connector.name": "audited",
        "connector.journal.directory": path / "journals",
        "connector.journal.archive.directory": path / "archive",
        "kafka.producer.bootstrap.servers": broker.bootstrap,
        "kafka.producer.transactional.id": f"{prefix}-id",
        "kafka.topic.prefix": prefix,
        "snapshot.mode": "never",
        **options,
    }
    given = {name: str(value) for name, value in settings.items() if value is not None}
    file = path / "connector.yaml"
    file.write_text("".join(f"{name}: {json.dumps(text)}\n" for name, text in given.items()))
    return file


def _ship(path: Path) -> None:
    """Ship what waits, and keep it in the archive."""
    config = load_config(path)
    assert config.journal_archive_directory is not None
    config.journal_archive_directory.mkdir(mode=0o700, exist_ok=True)
    assert loop.Shipper(config, once=True).run() == 0


def _compare(
    spark: SparkSession, config: Path, since: str | None = None, until: str | None = None
) -> tuple[Comparison, list[Row]]:
    loaded = load_config(config)
    changes = open_input(
        spark,
        [str(loaded.journal_archive_directory)],
        since=None if since is None else Bound.parse(since),
        until=None if until is None else Bound.parse(until),
    )
    try:
        comparison = compare(spark, changes, loaded, consumer_properties={})
        return comparison, comparison.findings.collect()
    finally:
        changes.close()


@dataclass
class Planted:
    """One comparison of topics with many faults."""

    comparison: Comparison
    findings: list[Row]

    def of(self, case: int) -> list[Row]:
        """Return the findings on the keys of a case."""
        return [
            row
            for row in self.findings
            if row["topic"].endswith("faulty.fdb.T")
            and json.loads(row["key"])["ID"] // KEYS == case
        ]

    def in_database(self, name: str) -> list[Row]:
        """Return the findings in a database."""
        return [row for row in self.findings if row["database"] == f"/data/{name}.fdb"]


@pytest.fixture(scope="module")
def planted(
    tmp_path_factory: pytest.TempPathFactory, _spark_session: SparkSession, broker: KafkaBroker
) -> Planted:
    path = tmp_path_factory.mktemp("topics")
    prefix = f"t{uuid.uuid4().hex[:12]}"
    config = _config(path, broker, prefix)
    _fill(path / "journals", "/data/faulty.fdb", len(PLANTED))
    for name in ("short", "compacted"):
        _fill(path / "journals", f"/data/{name}.fdb", 1)
    _ship(config)

    def plant(raws: list[Raw]) -> list[Raw]:
        for number, change in enumerate(PLANTED):
            change(Case(number, raws))
        return raws

    def compact(raws: list[Raw]) -> list[Raw]:
        """Leave the last of each key, as the broker will in its time; but of one key nothing. Of
        another one the last is the state that a repair has told."""
        case = Case(0, raws)
        _repaired(case)
        last = {raw.key: raw for raw in case.raws}
        return [raw for raw in last.values() if json.loads(raw.key or b"")["payload"]["ID"] != 4]

    def topic(name: str) -> str:
        return f"{prefix}._data_{name}.fdb.T"

    rewrite(
        broker.bootstrap,
        {topic("faulty"): plant, topic("compacted"): compact},
        {topic("compacted"): {"cleanup.policy": "compact"}},
    )
    # Retention takes what is before a place in the middle; one event behind it is lost.
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    rewrite(broker.bootstrap, {topic("short"): lambda raws: _without(raws, 7)})
    cut = TopicPartition(topic("short"), 0, 5)
    admin.delete_records([cut])[cut].result(30)
    # What the shipper has not sent yet is in the folder, too.
    unsent = History(path / "archive", database="/data/short.fdb", seed=9, sequence=10)
    unsent.define("T", T)
    unsent.commit(("u", "T", (1, 8), (1, 9)))
    return Planted(*_compare(_spark_session, config))


def _without(raws: list[Raw], number: int) -> list[Raw]:
    (lost,) = (raw for raw in raws if raw.value is not None and _is_it(raw, 1, "u", number))
    return [raw for raw in raws if raw is not lost]


@pytest.mark.parametrize("case", range(len(PLANTED)), ids=[f.__name__[1:] for f in PLANTED])
def test_planted_fault_is_found_alone_and_named(planted: Planted, case: int) -> None:
    expected = list(PLANTED.values())[case]
    findings = planted.of(case)
    if expected is None:
        assert findings == []
        return
    kind, key, columns = expected
    (found,) = findings
    assert found["kind"] == kind
    assert found["key"].endswith(f"{case * KEYS + key}" + "}")
    for name, value in columns.items():
        assert found[name] == value, name
    for name in ("sequence", "transaction", "table", "key"):
        if found[name] is not None:
            assert str(found[name]) in found["what"]
    assert planted.comparison.kinds[kind].is_fault == (kind != "late")


def test_an_order_fault_names_both_transactions(planted: Planted) -> None:
    (found,) = (row for row in planted.findings if row["kind"] == "order")
    assert "sequence 3 (transaction 1003)" in found["what"]
    assert "sequence 6 (transaction 1006)" in found["what"]


def test_each_planted_fault_is_one_finding_at_most(planted: Planted) -> None:
    cases = {len(planted.of(number)) for number in range(len(PLANTED))}
    assert cases == {0, 1}
    assert len(planted.in_database("faulty")) + 1 == len([*filter(None, PLANTED.values())])


def test_only_events_within_the_topics_retention_are_expected(planted: Planted) -> None:
    (lost,) = planted.in_database("short")
    assert (lost["kind"], lost["sequence"], lost["key"]) == ("missing event", 9, '{"ID":1}')
    assert any(
        "retention has taken its beginning; proven is partition 0 from sequence 4" in text
        for text in planted.comparison.proven
    )
    assert any("older than what retention has left" in text for text in planted.comparison.notes)


def test_compacted_topic_must_hold_the_last_message_of_each_key(planted: Planted) -> None:
    (lost,) = planted.in_database("compacted")
    assert (lost["kind"], lost["sequence"], lost["key"]) == ("missing event", 8, '{"ID":4}')
    assert any(
        "only the last message of each key is due" in text for text in planted.comparison.proven
    )


def test_unshipped_events_are_not_expected(planted: Planted) -> None:
    assert any(text.startswith("1 events are behind what") for text in planted.comparison.notes)
    assert any(
        "/data/short.fdb: compared with Kafka from sequence 1 to 10 of epoch 0" in text
        for text in planted.comparison.proven
    )


PRICES = (
    replace(column("ID", Storage.INTEGER, key=1), sub_type=1, scale=-2, precision=9),
    replace(column("N", Storage.SMALLINT), sub_type=1, scale=-2, precision=4),
)


def test_both_halves_of_a_topic_around_an_upgrade_are_right(
    spark: SparkSession,
    broker: KafkaBroker,
    tmp_path: Path,
    topic_prefix: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first half bears the version before and its form, other schemas in keys and values. What
    somebody changed in it afterwards is found alone."""
    config = _config(tmp_path, broker, topic_prefix)
    history = History(tmp_path / "journals", database="/data/upgraded.fdb")
    history.define("PRICES", PRICES)

    def commit(low: int) -> None:
        history.commit(("c", "PRICES", None, (low, 32767)), ("c", "PRICES", None, (low + 1, 1)))
        history.commit(("u", "PRICES", (low, 32767), (low, -32768)))
        history.commit(("u", "PRICES", (low, -32768), (low + 5, 2)), ("d", "PRICES", (7, 4), None))
        history.commit(("d", "PRICES", (low + 1, 1), None), ("u", "PRICES", (9, 3), (9, 2)))

    with monkeypatch.context() as before:
        before.setattr(source, "__version__", "0.1.0")
        older = partial(Renderer, message_form=form_of("0.1.0"))
        before.setattr(loop, "Renderer", older)
        commit(100)
        _ship(config)
    commit(100)
    commit(200)
    _ship(config)
    topic = f"{topic_prefix}._data_upgraded.fdb.PRICES"
    raws = read_raw(broker.bootstrap, [topic])[topic]
    versions = [json.loads(raw.value)["payload"]["source"]["version"] for raw in raws if raw.value]
    assert versions == sorted(versions)
    assert set(versions) == {"0.1.0", __version__}
    comparison, findings = _compare(spark, config)
    assert findings == []
    assert comparison.counts["messages matched"] == len(raws)

    def alter(raws: list[Raw]) -> list[Raw]:
        value = (raws[0].value or b"").replace(b'"N":"f/8="', b'"N":"f/4="')
        return [raws[0]._replace(value=value), *raws[1:]]

    rewrite(broker.bootstrap, {topic: alter})
    _, (found,) = _compare(spark, config)
    assert (found["kind"], found["sequence"], found["position"]) == ("altered event", 1, 1)


UNWRAP = {"transforms": "u", "transforms.u.type": "unwrap"}
"""Leaves no ``source`` in a message."""


@pytest.mark.parametrize("options", few_of({"with-source": {}, "unwrapped": UNWRAP}, ["unwrapped"]))
def test_event_compacted_away_by_one_behind_the_range_is_not_missing(
    spark: SparkSession,
    broker: KafkaBroker,
    tmp_path: Path,
    topic_prefix: str,
    options: dict[str, str],
) -> None:
    """Also if that was a delete, of which not even the tombstone is left; one event is lost."""
    config = _config(tmp_path, broker, topic_prefix, **options)
    history = History(tmp_path / "journals", database="/data/later.fdb")
    history.define("T", T)
    history.commit(("c", "T", None, (1, 1)), ("c", "T", None, (2, 1)), ("c", "T", None, (3, 1)))
    history.commit(("u", "T", (3, 1), (3, 2)))
    for number in range(1, 4):
        history.commit(("u", "T", (1, number), (1, number + 1)))
    history.commit(("d", "T", (2, 1), None))
    _ship(config)
    topic = f"{topic_prefix}._data_later.fdb.T"

    def compact(raws: list[Raw]) -> list[Raw]:
        return [raw for raw in raws if b'"N":4' in (raw.value or b"")]

    rewrite(broker.bootstrap, {topic: compact}, {topic: {"cleanup.policy": "compact"}})
    # The next change of the lost row waits for the shipper, so it has removed nothing.
    history.folder = tmp_path / "archive"
    history.commit(("u", "T", (3, 2), (3, 3)))
    comparison, findings = _compare(spark, config, until="4")
    (lost,) = findings
    assert (lost["kind"], lost["sequence"], lost["key"]) == ("missing event", 2, '{"ID":3}')
    (note,) = (text for text in comparison.notes if "compacted" in text)
    assert note.startswith("2 events are not in their compacted topics")


def test_a_later_message_of_a_key_is_enough_though_its_journal_is_not_there(
    spark: SparkSession, broker: KafkaBroker, tmp_path: Path, topic_prefix: str
) -> None:
    """And though it does not tell where it is from, and nothing else is there to compare."""
    config = _config(tmp_path, broker, topic_prefix, **UNWRAP)
    history = History(tmp_path / "journals", database="/data/later.fdb")
    history.define("T", T)
    history.commit(("c", "T", None, (1, 1)))
    history.commit(("u", "T", (1, 1), (1, 2)))
    _ship(config)
    topic = f"{topic_prefix}._data_later.fdb.T"
    rewrite(
        broker.bootstrap,
        {topic: lambda raws: raws[-1:]},
        {topic: {"cleanup.policy": "compact"}},
    )
    (tmp_path / "archive" / history.paths[1].name).unlink()
    comparison, findings = _compare(spark, config, until="1")
    assert findings == []
    assert any(text.startswith("1 events are not in") for text in comparison.notes)


RESTORED = "/data/restored.fdb"


@pytest.fixture(scope="module")
def restored(
    tmp_path_factory: pytest.TempPathFactory, broker: KafkaBroker
) -> tuple[Path, list[Path]]:
    """A database of 8 transactions, and one of 5 that was restored in its place: the configuration,
    and the journals of the first. Behind all lie two events that are of no journal: one tells that
    it is of the second, one tells nothing, as of an earlier version."""
    path = tmp_path_factory.mktemp("restored")
    prefix = f"t{uuid.uuid4().hex[:12]}"
    config = _config(path, broker, prefix)
    journals: list[list[Path]] = []
    for epoch, transactions in enumerate((8, 5)):
        history = History(path / "journals", database=RESTORED, epoch=epoch)
        history.define("T", T)
        for number in range(transactions):
            history.commit(("u", "T", (1, 10 * epoch + number), (1, 10 * epoch + number + 1)))
        journals.append([path / "archive" / each.name for each in history.paths])
    _ship(config)
    topic = f"{prefix}._data_restored.fdb.T"
    case = Case(0, read_raw(broker.bootstrap, [topic])[topic])
    at = case.find(1, "u", 3)
    _phantom_of(case, at, epoch=1)
    _phantom_of(case, at, epoch=None)
    write_raw(broker.bootstrap, {topic: case.raws[-2:]})
    return config, journals[0]


_RANGES = {
    "the last epoch": ("1", None, "8 messages are of journals that are not in the range"),
    "both epochs": ("0:4", None, "3 messages are of journals that are not in the range"),
    "the first epoch": (None, "0:6", "8 messages are of journals that are not in the range"),
    "all": (None, None, None),
}


@pytest.mark.parametrize(
    ("since", "until", "told"), few_of(_RANGES, ("both epochs", "the first epoch"))
)
def test_events_of_both_sides_of_a_restore_are_known(
    spark: SparkSession,
    restored: tuple[Path, list[Path]],
    since: str | None,
    until: str | None,
    told: str | None,
) -> None:
    """Numbers begin again at 1 there, and messages of earlier versions do not tell their epoch."""
    comparison, findings = _compare(spark, restored[0], since, until)
    assert len(findings) == (2 if until is None else 1)  # the other tells that it is behind
    for found in findings:
        whose = found["kind"], found["sequence"], found["transaction"]
        assert whose == ("unknown event", 3, 4711)
    notes = [text for text in comparison.notes if "not in the range" in text]
    assert notes == ([] if told is None else [told])


def test_journals_of_before_a_restore_may_be_gone(
    spark: SparkSession, restored: tuple[Path, list[Path]], tmp_path: Path
) -> None:
    """Take the epoch of an earlier version's message from its place alone where the number was that
    of an absent journal."""
    config, first = restored
    for journal in first:
        journal.rename(tmp_path / journal.name)
    try:
        comparison, findings = _compare(spark, config)
    finally:
        for journal in first:
            (tmp_path / journal.name).rename(journal)
    whose = [(found["kind"], found["transaction"]) for found in findings]
    assert whose == [("unknown event", 4711)] * 2
    assert "8 messages are from before the first journal that was read" in comparison.notes


def test_topic_that_is_gone_is_passed_over_and_any_other_error_is_not(
    spark: SparkSession, broker: KafkaBroker, topic_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_raw(broker.bootstrap, {f"{topic_prefix}.here": [Raw(0, None, b"1", [])]})
    names = [f"{topic_prefix}.gone", f"{topic_prefix}.here"]
    options = {"bootstrap.servers": broker.bootstrap}
    assert topic_reader.written_by_now(spark, options, names) == {(names[1], 0): 1}
    monkeypatch.setattr(topic_reader, "_ABSENT", frozenset())
    with pytest.raises(ReplayError, match="Kafka at"):
        topic_reader.written_by_now(spark, options, names)


def test_events_shipped_during_the_comparison_are_not_reported(
    spark: SparkSession,
    broker: KafkaBroker,
    tmp_path: Path,
    topic_prefix: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Though its messages do not tell where they are from; a message of nobody's is found."""
    config = _config(tmp_path, broker, topic_prefix, **UNWRAP)
    history = History(tmp_path / "journals", database="/data/busy.fdb")
    history.define("T", T)
    history.commit(("c", "T", None, (1, 1)))
    history.commit(("u", "T", (1, 1), (1, 2)))
    _ship(config)
    topic = f"{topic_prefix}._data_busy.fdb.T"
    (first, *_) = read_raw(broker.bootstrap, [topic])[topic]
    write_raw(broker.bootstrap, {topic: [first._replace(value=b'{"hello":1}')]})

    def read_expected(*given: Any) -> DataFrame:
        planned = rendered.read_expected(*given)
        history.commit(("u", "T", (1, 2), (1, 3)), ("c", "T", None, (2, 1)))
        _ship(config)
        return planned

    monkeypatch.setattr(against_kafka, "read_expected", read_expected)
    comparison, findings = _compare(spark, config)
    (found,) = findings
    assert found["kind"] == "unknown event"
    assert "a message that no journal asks for" in found["what"]
    assert comparison.counts["messages in the topics"] == 3


_DOUBLED = {
    "from 3": ("3", None, [4]),
    "up to 2": (None, "2", []),
    "2 to 4": ("2", "4", [4]),
}


@pytest.mark.parametrize(("since", "until", "doubled"), few_of(_DOUBLED, ["2 to 4"]))
def test_equal_messages_of_events_outside_the_range_are_not_doubled(
    spark: SparkSession,
    broker: KafkaBroker,
    tmp_path: Path,
    topic_prefix: str,
    since: str | None,
    until: str | None,
    doubled: list[int],
) -> None:
    """Though they do not tell where they are from; what is doubled in the range is."""
    config = _config(tmp_path, broker, topic_prefix, **UNWRAP)
    history = History(tmp_path / "journals", database="/data/equal.fdb")
    history.define("T", T)
    history.commit(("c", "T", None, (1, 1)), ("c", "T", None, (4, 1)))
    history.commit(("c", "T", None, (2, 1)), ("u", "T", (1, 1), (1, 2)))
    history.commit(("c", "T", None, (3, 1)), ("u", "T", (1, 2), (1, 1)))
    history.commit(("u", "T", (3, 1), (3, 2)), ("c", "T", None, (5, 1)))
    history.commit(("u", "T", (1, 1), (1, 2)))
    _ship(config)
    topic = f"{topic_prefix}._data_equal.fdb.T"

    def double(raws: list[Raw]) -> list[Raw]:
        (at,) = (
            index
            for index, raw in enumerate(raws)
            if json.loads(raw.key or b"")["payload"] == {"ID": 3}
            and json.loads(raw.value or b"")["payload"]["N"] == 2
        )
        return [*raws[: at + 1], *raws[at:]]

    rewrite(broker.bootstrap, {topic: double})
    comparison, findings = _compare(spark, config, since, until)
    assert [(row["kind"], row["sequence"]) for row in findings] == [
        ("doubled event", sequence) for sequence in doubled
    ]
    assert any("messages are equal to others of their keys" in text for text in comparison.notes)


def test_doubled_event_after_a_restore_is_found(
    spark: SparkSession, broker: KafkaBroker, tmp_path: Path, topic_prefix: str
) -> None:
    """Also where messages do not tell where they are from."""
    config = _config(tmp_path, broker, topic_prefix, **UNWRAP)
    for epoch, key in enumerate((1, 2)):
        history = History(tmp_path / "journals", database="/data/again.fdb", epoch=epoch)
        history.define("T", T)
        history.commit(("c", "T", None, (1, 1)), ("c", "T", None, (key + 1, 1)))
        history.commit(("u", "T", (1, 1), (1, 2)))
    _ship(config)
    topic = f"{topic_prefix}._data_again.fdb.T"
    raw = read_raw(broker.bootstrap, [topic])[topic][-2]
    write_raw(broker.bootstrap, {topic: [raw]})
    _, findings = _compare(spark, config)
    (doubled,) = findings
    assert (doubled["kind"], doubled["epoch"], doubled["key"]) == ("doubled event", 1, '{"ID":3}')


def test_an_older_message_of_a_key_is_no_event_that_was_not_shipped_yet(
    spark: SparkSession, broker: KafkaBroker, tmp_path: Path, topic_prefix: str
) -> None:
    """Though it does not tell that it is from before the range."""
    config = _config(tmp_path, broker, topic_prefix, **UNWRAP)
    history = History(tmp_path / "journals", database="/data/older.fdb")
    history.define("T", T)
    history.commit(("c", "T", None, (1, 1)))
    history.commit(("c", "T", None, (2, 1)), ("c", "T", None, (3, 1)))
    _ship(config)
    topic = f"{topic_prefix}._data_older.fdb.T"

    def alter(raws: list[Raw]) -> list[Raw]:
        value = raws[2].value
        assert value is not None
        return [*raws[:2], raws[2]._replace(value=value.replace(b'"N":1', b'"N":9')), *raws[3:]]

    rewrite(broker.bootstrap, {topic: alter})
    history.folder = tmp_path / "archive"
    history.commit(("u", "T", (1, 1), (1, 2)))
    comparison, findings = _compare(spark, config, since="2")
    (altered,) = findings
    assert (altered["kind"], altered["sequence"], altered["key"]) == (
        "altered event",
        2,
        '{"ID":3}',
    )
    assert any(text.startswith("1 events are behind") for text in comparison.notes)


RESHAPED = {
    "kafka.producer.transactional.id": None,  # at least once
    "provide.transaction.metadata": "true",
    "table.exclude.list": ".*[.]HIDDEN",
    "column.mask.with.5.chars": ".*[.]PERSON[.]NAME",
    "message.key.columns": ".*[.]VISIT:DAY_NO,PERSON",
    "transforms": "u",
    "transforms.u.type": "unwrap",
    "transforms.u.add.fields": "op,ts_ms,source.version",
    "transforms.u.delete.tombstone.handling.mode": "rewrite-with-tombstone",
}


def _work(path: Path, stack: Stack) -> None:
    """Have the real engine write journals: blobs, DDL, a change of a key, an excluded table."""
    capture = Capture(path, stack, {"ServerMode": "Super"})
    capture.install()
    capture.create(
        "CREATE TABLE PERSON (ID INTEGER NOT NULL PRIMARY KEY, NAME VARCHAR(40), NOTE BLOB SUB_TYPE"
        " TEXT, BALANCE NUMERIC(18, 2), SEEN TIMESTAMP)",
        "CREATE TABLE VISIT (ID INTEGER NOT NULL PRIMARY KEY, DAY_NO INTEGER, PERSON INTEGER)",
        "CREATE TABLE HIDDEN (ID INTEGER NOT NULL PRIMARY KEY)",
    )
    attachment = capture.attach()
    for person in range(1, 6):
        attachment.script(
            f"INSERT INTO PERSON VALUES ({person}, 'Zoë {person}', 'a note', 1.50, NULL)",
            f"INSERT INTO VISIT VALUES ({person}, {person}, {person})",
            f"INSERT INTO HIDDEN VALUES ({person})",
            f"UPDATE PERSON SET BALANCE = BALANCE + {person} WHERE ID = {person}",
        )
    attachment.script("ALTER TABLE PERSON ADD CITY VARCHAR(20)")
    attachment.script("UPDATE PERSON SET CITY = 'Praha', SEEN = '2026-01-02 03:04:05'")
    attachment.script("UPDATE VISIT SET DAY_NO = 9 WHERE ID = 3", "DELETE FROM VISIT WHERE ID = 4")
    attachment.script("UPDATE PERSON SET BALANCE = 1 WHERE ID = 2")
    attachment.script("UPDATE PERSON SET BALANCE = 2 WHERE ID = 2")
    attachment.script("UPDATE PERSON SET BALANCE = 1 WHERE ID = 2")
    until("all journals to be confirmed", lambda: not capture.live(), 60)
    attachment.close()
    capture.end_clients()


@pytest.mark.engine
def test_audit_of_reshaped_messages_finds_the_lost_event_alone(
    spark: SparkSession, broker: KafkaBroker, tmp_path: Path, stack: Stack, topic_prefix: str
) -> None:
    """Report no change by masks, filters and transforms, but one lost event, though its message
    does not tell where it is from and looks like another one of its key."""
    _work(tmp_path, stack)
    journals = len(committed_in(tmp_path / "journals"))
    config = _config(tmp_path, broker, topic_prefix, **RESHAPED)
    _ship(config)
    names = AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=30).topics
    (topic,) = (name for name in names if name.startswith(topic_prefix) and "PERSON" in name)

    def lose(raws: list[Raw]) -> list[Raw]:
        of_key = [raw for raw in raws if json.loads(raw.key or b"")["payload"] == {"ID": 2}]
        assert of_key[-1].value is not None
        return [raw for raw in raws if raw is not of_key[-3]]

    rewrite(broker.bootstrap, {topic: lose})
    comparison, findings = _compare(spark, config)
    (lost,) = findings
    assert (lost["kind"], lost["table"], lost["key"]) == ("missing event", "PERSON", '{"ID":2}')
    assert lost["sequence"] == journals - 2
    assert not comparison.kinds["doubled event"].is_fault
    assert comparison.counts["messages matched"] == comparison.counts["messages in the topics"]
