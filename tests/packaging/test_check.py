"""check: silent on a sound installation, and for every defect one finding that names it."""

from __future__ import annotations

import datetime
import fcntl
import json
import os
import re
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import forked
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from soaked import in_turn

from firebird_cdc.cli import main
from firebird_cdc.clock import now_us
from firebird_cdc.config import load_config
from firebird_cdc.journal.folder import exit_status
from firebird_cdc.journal.folder.exit_status import LastWords
from firebird_cdc.journal.format import JournalWriter
from firebird_cdc.journal.shipper.inbox.queue import Entry
from firebird_cdc.journal.shipper.local_offsets import Memory, Shipped
from firebird_cdc.journal.shipper.loop import Shipper
from firebird_cdc.journal.shipper.monitoring.report import Reporter
from firebird_cdc.journal.shipper.monitoring.statistics import Statistics
from firebird_cdc.journal.shipper.quarantine import Quarantine
from firebird_cdc.journal.shipper.snapshots.state import (
    Kind,
    Snapshot,
    SnapshotState,
    StateFolder,
    Status,
)
from firebird_cdc.packaging.check import _journals

if TYPE_CHECKING:
    from conftest import Work

    from firebird_cdc.demo.engine import EmbeddedRoot
    from firebird_cdc.demo.kafka import KafkaBroker

pytestmark = pytest.mark.kafka

NOBODY = 65534

# Folders of tests lie where journals shouldn't; see test_surroundings.py.
_OF_THIS_MACHINE = re.compile(
    r"is in /(?:tmp|var/tmp|dev/shm)|lies on the file system|MiB left of|nothing keeps this machine"
)


def _code(findings: list[str]) -> int:
    """The exit code that check ought to end with."""
    severities = {finding.partition(":")[0] for finding in findings}
    assert severities <= {"error", "warning", "note"}
    return 2 if "error" in severities else 1 if "warning" in severities else 0


_UNSHIPPED = re.compile(r"\d+ transactions? waits? and no shipper runs")


@dataclass
class Installation:
    """A sound installation in an engine's root, for a test to break."""

    root: Path
    options: Path
    journals: Path
    logs: Path
    environment: dict[str, str]

    def check(self, *databases: str) -> tuple[int, list[str]]:
        """Run the command in a process of its own; return exit code and findings."""
        argv = [sys.executable, "-P", "-m", "firebird_cdc", "check", "--server", str(self.root)]
        for database in databases:
            argv += ["--database", database]
        done = forked.run(argv, env=self.environment, capture_output=True, text=True)
        assert done.stderr == ""
        *findings, _ = re.split(r"\n(?=\S)", done.stdout.strip())
        assert done.returncode == _code(findings)
        findings = [finding for finding in findings if not _OF_THIS_MACHINE.search(finding)]
        if databases:  # tests write to them, and how long ago that was is up to the machine
            findings = [finding for finding in findings if not _UNSHIPPED.search(finding)]
        return _code(findings), findings

    def replace(self, name: str, old: str, new: str) -> None:
        """Change a configuration file."""
        path = self.root / name
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))


@pytest.fixture
def sound(
    engine_root: EmbeddedRoot, options_file: Path, broker: KafkaBroker, tmp_path: Path, logs: Path
) -> Installation:
    options_file.write_text(
        options_file.read_text().replace("127.0.0.1:9", broker.bootstrap)
        + f"connector.journal.archive.directory: {tmp_path / 'archive'}\n"
    )
    server = ["--server", str(engine_root.path)]
    assert main(["install", *server, "--config", str(options_file)]) == 0
    environment = engine_root.environment()
    journals = tmp_path / "new/journals"
    return Installation(engine_root.path, options_file, journals, logs, environment)


def test_a_sound_installation_has_no_findings(sound: Installation) -> None:
    assert sound.check() == (0, [])


Defect = Callable[[Installation], None]


def _plugin_missing(it: Installation) -> None:
    (it.root / "plugins/libfirebird_cdc.so").unlink()


def _plugin_of_another_build(it: Installation) -> None:
    with (it.root / "plugins/libfirebird_cdc.so").open("ab") as file:
        file.write(b"older")


def _embedding_missing(it: Installation) -> None:
    for path in (it.root / "plugins/firebird_cdc").glob("_embedding*"):
        path.unlink()


def _libpython_gone(it: Installation) -> None:
    it.replace("plugins.conf", "\tPython = ", "\tPython = /gone")


def _python_dirs_elsewhere(it: Installation) -> None:
    conf = it.root / "plugins.conf"
    conf.write_text(re.sub(r"PythonDirs = .*", "PythonDirs = /nowhere", conf.read_text()))


def _plugin_section_missing(it: Installation) -> None:
    it.replace("plugins.conf", "Plugin = Debezium_Connector\n", "Plugin = Debezium\n")


def _module_of_the_old_connector(it: Installation) -> None:
    it.replace("plugins.conf", "/firebird_cdc\n\tConfig", "/debezium_connector\n\tConfig")


def _config_section_missing(it: Installation) -> None:
    it.replace("plugins.conf", "Config = Debezium_Connector_config\n{", "Config = other\n{")


def _plugins_conf_broken(it: Installation) -> None:
    with (it.root / "plugins.conf").open("a") as file:
        file.write("}\n")


def _replication_conf_missing(it: Installation) -> None:
    (it.root / "replication.conf").unlink()


def _another_plugin(it: Installation) -> None:
    it.replace("replication.conf", "plugin = Debezium_Connector", "plugin = Other")


def _errors_not_reported(it: Installation) -> None:
    it.replace("replication.conf", "\treport_errors = true\n", "")


def _disabled_on_error(it: Installation) -> None:
    it.replace("replication.conf", "disable_on_error = false", "disable_on_error = true")


def _two_defaults(it: Installation) -> None:
    with (it.root / "replication.conf").open("a") as file:
        file.write("database\n{\n}\n")


def _unknown_option(it: Installation) -> None:
    with it.options.open("a") as file:
        file.write("connector.nam: x\n")


def _wrong_value(it: Installation) -> None:
    with it.options.open("a") as file:
        file.write("connector.journal.fsync: perhaps\n")


def _transform_missing(it: Installation) -> None:
    with it.options.open("a") as file:
        file.write("transforms: own\ntransforms.own.type: no_such_module.Transform\n")


def _shipper_ended(it: Installation) -> None:
    path = exit_status.words_path(it.journals)
    path.parent.mkdir(parents=True, exist_ok=True)
    exit_status.leave(path, LastWords(3, "another producer has taken over", 0, 0.0))


def _options_missing(it: Installation) -> None:
    it.options.unlink()


def _logs_gone(it: Installation) -> None:
    it.logs.rmdir()


def _log_of_somebody_else(it: Installation) -> None:
    it.logs.chmod(0o1777)
    log = it.logs / "server.log"
    log.touch(0o600)
    os.chown(log, NOBODY, NOBODY)


def _logging_wrong(it: Installation) -> None:
    (it.root / "firebird_cdc_logging.yaml").write_text("level: loud\n")


def _journal_directory_missing(it: Installation) -> None:
    it.journals.rmdir()


def _archive_is_a_file(it: Installation) -> None:
    archive = it.journals.parent.parent / "archive"
    archive.rmdir()
    archive.touch()


def _other_user(it: Installation) -> None:
    security = it.root / "security5.fdb"
    security.touch()
    os.chown(security, NOBODY, NOBODY)


def _old(path: Path) -> None:
    os.utime(path, (1_600_000_000, 1_600_000_000))


def _journal(path: Path) -> None:
    writer = JournalWriter(path, uuid=uuid.uuid4(), transaction=1, database="/d", user="U")
    writer.close()
    _old(path)


def _journals_wait(it: Installation) -> None:
    _journal(it.journals / f"{uuid.uuid4()}.log")


def _journals_orphaned(it: Installation) -> None:
    _journal(it.journals / f"{uuid.uuid4()}.log.live")


def _journals_passed_over(it: Installation) -> None:
    shipped = Shipped(it.journals, "positions")
    shipped.miss("/srv/a.fdb", (0, 3), (0, 4))
    shipped.write()


def _journals_that_kafka_lost(it: Installation) -> None:
    shipped = Shipped(it.journals, "positions")
    shipped.databases["/srv/a.fdb"] = Memory("/srv/a.fdb", "positions", (0, 9))
    shipped.lose(shipped.databases["/srv/a.fdb"], (0, 6))
    shipped.write()


def _end_left_out(it: Installation) -> None:
    shipped = Shipped(it.journals, "positions")
    shipped.leave_out("/srv/a.fdb", ["END of a transaction"])
    shipped.write()


def _snapshot_incomplete(it: Installation) -> None:
    shipped = Shipped(it.journals, "positions")
    shipped.lack("/srv/a.fdb", "s1", now_us(), "3 rows of GOODS")
    shipped.write()


def _unread_blobs(it: Installation) -> None:
    shipped = Shipped(it.journals, "positions")
    shipped.count_unsent("/srv/a.fdb", "unread", uuid.uuid4(), (0, 3), [(2, "after.B of table T")])
    shipped.write()


def _snapshot_owed(it: Installation) -> None:
    owed = Snapshot("s1", Kind.INITIAL, "snapshot.mode", status=Status.OWED)
    (it.journals / ".firebird-cdc").mkdir(exist_ok=True)
    StateFolder(it.journals).write(SnapshotState("/srv/a.fdb", waiting=[owed]))


def _quarantined(it: Installation) -> None:
    quarantine = it.journals / ".firebird-cdc/quarantine"
    quarantine.mkdir(parents=True)
    _journal(quarantine / "6f1c.log")
    (quarantine / "6f1c.reason").write_text("block at byte 1536: checksum differs")


def _kafka_elsewhere(it: Installation) -> None:
    text = it.options.read_text()
    it.options.write_text(re.sub(r"(bootstrap\.servers): .*", r"\1: 127.0.0.1:9", text))


def _position_topic_split(it: Installation) -> None:
    text = it.options.read_text()
    servers = re.search(r"bootstrap\.servers: (.*)", text)
    assert servers is not None
    topic = f"positions-{uuid.uuid4()}"
    admin = AdminClient({"bootstrap.servers": servers[1]})
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result()
    it.options.write_text(f"{text}kafka.position.topic: {topic}\n")


def _shipped_from_another_folder(it: Installation) -> None:
    """Another server has the same transactional id and prefix."""
    text = _ship_with_transactions(it)  # makes this folder known
    elsewhere = it.options.with_name("elsewhere.yaml")
    there = it.journals.with_name("there")
    there.mkdir()
    elsewhere.write_text(text.replace(str(it.journals), str(there)))
    _committed_journal(there)
    assert Shipper(load_config(elsewhere), once=True).run() == 0


def _ship_with_transactions(it: Installation) -> str:
    """Let a shipper with a transactional id run; return its options."""
    prefix = f"check-{uuid.uuid4()}"
    text = it.options.read_text().replace("topic.prefix: test", f"topic.prefix: {prefix}")
    text += f"kafka.producer.transactional.id: {prefix}\n"
    it.options.write_text(text)
    assert Shipper(load_config(it.options), once=True).run() == 0
    return text


def _committed_journal(folder: Path) -> None:
    identity = uuid.uuid4()
    with JournalWriter(
        folder / f"{identity}.log", uuid=identity, transaction=1, database="/d", user="U"
    ) as writer:
        writer.ddl("GRANT SELECT ON T TO U")
        writer.seal()
        writer.commit(1, 1)
        writer.stamp(1)


def _refused_by_the_engine(it: Installation) -> None:
    import time

    (it.root / "replication.log").write_text(
        f"\nhost {time.ctime()}\n\tDatabase: /d.fdb\n\tERROR: Plugin Debezium_Connector:\n"
        "\tcannot be loaded\n\nhost Mon Jan  5 10:00:00 2015\n\tfirebird_cdc: long ago\n"
    )


def _refused_time_and_again(it: Installation) -> None:
    import time

    entry = f"\nhost {time.ctime()}\n\tDatabase: /d.fdb\n\tERROR: firebird-cdc: no room\n"
    (it.root / "replication.log").write_text(3 * entry)


def _journal_directory_is_a_file(it: Installation) -> None:
    _committed_journal(it.journals)
    _ship_with_transactions(it)  # so positions in Kafka are looked at, too
    it.journals.rename(it.journals.with_name("away"))
    it.journals.write_text("no directory")


def _counted_nowhere(it: Installation) -> None:
    moment = datetime.datetime.now() - datetime.timedelta(days=100)  # it does not become history
    (it.root / "replication.log").write_text(
        f"\nhost (replica) {moment:%a %b %d %H:%M:%S %Y}\n\tDatabase: /srv/a.fdb\n\tERROR:"
        f" firebird-cdc at {moment.timestamp():.0f}: transactions were refused, and that is counted"
        " nowhere: cannot count in StateDirectory /srv/state: No space left on device (errno 28)\n"
    )


def _option_of_no_effect(it: Installation) -> None:
    with it.options.open("a") as file:
        file.write("tasks.max: 2\n")


def _pattern_of_the_manual(it: Installation) -> None:
    with it.options.open("a") as file:
        file.write("column.include.list: .*id, *.name\n")


# They keep nothing from being captured or delivered now.
_WARNED_OF = (_journals_orphaned, _option_of_no_effect, _pattern_of_the_manual, _snapshot_owed)


@pytest.mark.parametrize(
    ("defect", "where", "what", "remedy"),
    [
        (_plugin_missing, "libfirebird_cdc.so", "is missing", "firebird-cdc install"),
        (_plugin_of_another_build, "libfirebird_cdc.so", "another build", "firebird-cdc install"),
        (_embedding_missing, "_embedding.cpython", "is missing", "firebird-cdc install"),
        (_libpython_gone, "plugins.conf", "Python = /gone", "firebird-cdc install"),
        (_python_dirs_elsewhere, "plugins.conf", "PythonDirs = /nowhere", "install firebird-cdc"),
        (_plugin_section_missing, "plugins.conf", "'Plugin = Debezium_Connector'", "install"),
        (_module_of_the_old_connector, "plugins.conf, line", "not our plugin", "install"),
        (_config_section_missing, "plugins.conf", "'Config = Debezium_Connector_config'", "inst"),
        (_plugins_conf_broken, "plugins.conf", "'}' without a section", "correct that line"),
        (_replication_conf_missing, "replication.conf", "missing", "firebird-cdc install"),
        (_another_plugin, "replication.conf", "no 'database' section", "firebird-cdc install"),
        (_errors_not_reported, "'database'", "default is false", "report_errors = true"),
        (_disabled_on_error, "'database'", "disable_on_error = true", "disable_on_error = false"),
        (_two_defaults, "replication.conf", "more than one default", "correct the file"),
        (_unknown_option, "connector.yaml", "connector.nam", "no shipper starts with it"),
        (_wrong_value, "connector.yaml", "line 7: connector.journal.fsync", "refuses to commit"),
        (_option_of_no_effect, "connector.yaml", "tasks.max has no effect", "correct"),
        (_pattern_of_the_manual, "connector.yaml", "list: .*id, .*.name", "correct the option"),
        (_transform_missing, "connector.yaml", "no Python module", "correct the option"),
        (_shipper_ended, "new/journals", "last one ended: another producer has", "fix that"),
        (_options_missing, "connector.yaml", "connector.yaml", "correct the option"),
        (_logging_wrong, "firebird_cdc_logging.yaml", "loud", "correct the option"),
        (_journal_directory_missing, "connector.journal.directory", "not exist", "install -d"),
        (_journal_directory_is_a_file, "connector.journal.directory", "is no directory", "move"),
        (_archive_is_a_file, "archive.directory", "is no directory", "move it away"),
        (
            _journals_wait,
            "new/journals",
            "1 transaction waits and no shipper runs",
            "ship --config",
        ),
        (_journals_orphaned, "new/journals", "1 transaction left undecided", "recovery decides"),
        (
            _journals_passed_over,
            "new/journals",
            "journals 3 to 4 (epoch 0) of /srv/a",
            "quarantine",
        ),
        (_journals_that_kafka_lost, "new/journals", "no longer has journals 7 to 9", "acknowledge"),
        (_end_left_out, "new/journals", "left out: END of a transaction (1)", "acknowledge"),
        (_snapshot_incomplete, "new/journals", "s1: 3 rows of GOODS", "journal acknowledge"),
        (_unread_blobs, "new/journals", "1 event has placeholders", "journal acknowledge"),
        (_snapshot_owed, "database.hostname", "of /srv/a.fdb is owed", "database.password.file"),
        (_quarantined, "6f1c.log", "checksum differs", "firebird-cdc journal show"),
        (_kafka_elsewhere, "bootstrap.servers", "no answer from 127.0.0.1:9", "start Kafka"),
        (_position_topic_split, "position.topic", "has 2 partitions", "let the shipper make it"),
        (_shipped_from_another_folder, "transactional.id", "new/there", "transactional id"),
        (_refused_by_the_engine, "replication.log", "cannot be loaded", "LoggingConfig"),
        (_refused_time_and_again, "replication.log", "3 times, at last on", "LoggingConfig"),
        (_counted_nowhere, "replication.log", "/srv/a.fdb: transactions were", "acknowledge"),
    ],
    ids=lambda value: value.__name__.strip("_") if callable(value) else "",
)
def test_every_defect_is_one_finding_that_names_place_and_remedy(
    sound: Installation, defect: Defect, where: str, what: str, remedy: str
) -> None:
    defect(sound)
    code, findings = sound.check()
    assert len(findings) == 1, findings
    parts = re.fullmatch(r"(\w+): (.*?): (.*)\n +-> (.*)", findings[0], re.DOTALL)
    assert parts is not None, findings
    severity, place, said, todo = parts.groups()
    assert (severity, code) == (("warning", 1) if defect in _WARNED_OF else ("error", 2))
    assert where in place
    assert what in f"{place}: {said}"
    assert remedy in todo


def test_quarantine_is_what_lies_there_whatever_a_kill_has_left(tmp_path: Path) -> None:
    quarantine = tmp_path / ".firebird-cdc/quarantine"
    quarantine.mkdir(parents=True)
    (quarantine / f"{uuid.uuid4()}.reason").write_text("sent again meanwhile")
    assert list(_journals(tmp_path, tmp_path / "c.yaml", None)) == []
    _journal(journal := quarantine / f"{uuid.uuid4()}.log")
    [finding] = _journals(tmp_path, tmp_path / "c.yaml", None)
    assert finding.where == str(journal)
    assert finding.what == "quarantined: no reason is given"


def test_table_without_a_topic_is_named_with_its_remedy(sound: Installation) -> None:
    entry = Entry(0, 1, uuid.uuid4())
    _journal(sound.journals / entry.name)
    quarantine = Quarantine(sound.journals)
    why = "it would share the topic x; set topic.name.encoding: escape"
    quarantine.leave_out(entry, "/srv/a.fdb", 1, why, [("table A", b"1")], "A")
    quarantine.keep([entry])
    (sound.journals / entry.name).unlink()
    code, findings = sound.check()
    assert code == 2
    [told] = [each for each in findings if "table A in /srv/a.fdb is not delivered" in each]
    assert why in told
    assert "firebird-cdc journal retry --all" in told


@pytest.mark.parametrize(
    ("defect", "wrong"),
    [(_unknown_option, "connector.nam"), (_wrong_value, "connector.journal.fsync")],
)
def test_backlog_and_quarantine_are_found_despite_a_wrong_option(
    sound: Installation, defect: Defect, wrong: str
) -> None:
    _quarantined(sound)
    _journals_wait(sound)
    defect(sound)
    code, findings = sound.check()
    assert code == 2
    assert [each for each in findings if wrong in each]
    [waiting] = [each for each in findings if "1 transaction waits and no shipper runs" in each]
    assert f"correct what is wrong in {sound.options}" in waiting
    [aside] = [each for each in findings if "quarantined: " in each]
    assert "checksum differs" in aside
    assert len(findings) == 3


def test_engine_log_entry_of_yesterday_is_a_note(sound: Installation) -> None:
    import time

    yesterday = time.ctime(time.time() - 20 * 3600)
    (sound.root / "replication.log").write_text(
        f"\nhost {yesterday}\n\tERROR: Replication plugin Debezium_Connector is not found\n"
    )
    code, [finding] = sound.check()
    assert code == 0
    assert finding.startswith("note: ")
    assert "was written before, and not again since: " in finding


def test_strict_ends_with_2_for_a_warning(sound: Installation) -> None:
    _journals_orphaned(sound)
    argv = [sys.executable, "-P", "-m", "firebird_cdc", "check", "--strict"]
    done = forked.run(argv, env=sound.environment, capture_output=True, text=True)
    assert "warning: " in done.stdout, done
    assert "error: " not in done.stdout, done
    assert done.returncode == 2


def test_missing_rights_of_the_servers_user_are_found(sound: Installation) -> None:
    sound.options.chmod(0o600)
    (sound.root / "firebird_cdc_logging.yaml").chmod(0o600)
    sound.journals.parent.parent.chmod(0o755)
    _other_user(sound)
    _, findings = sound.check()
    said = "\n".join(findings)
    assert f"{sound.options}: nobody can't read it" in said
    assert f"nobody can't write to {sound.journals}" in said


@pytest.mark.parametrize("broken", ["none is named", "can't write", "does not look into"])
def test_a_state_folder_that_can_not_be_used_is_a_warning(sound: Installation, broken: str) -> None:
    state = sound.options.parent / "firebird-cdc.state"
    if broken == "none is named":
        sound.replace("plugins.conf", "StateDirectory", "# StateDirectory")
    elif broken == "can't write":
        state.rmdir()
    else:
        elsewhere = sound.root / "elsewhere"
        elsewhere.mkdir()
        sound.replace("plugins.conf", str(state), str(elsewhere))
    code, [finding] = sound.check()
    assert code == 1
    assert finding.startswith("warning: ")
    assert "StateDirectory" in finding and broken in finding


def test_a_running_shipper_is_not_called_missing(sound: Installation) -> None:
    _journals_wait(sound)
    own = sound.journals / ".firebird-cdc"
    own.mkdir()
    with (own / "shipper.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _, findings = sound.check()
        assert len(findings) == 1
        assert "though a shipper runs" in findings[0]
        # What makes a database stand still is an error, what passes is none.
        statistics = Statistics()
        statistics.trouble("/srv/a.fdb", "halted", "6f1c.log: the registry refuses the schema")
        statistics.trouble("/srv/b.fdb", "waiting", "7a2d.log: the registry is away")
        report = Reporter(load_config(sound.options), statistics).report()
        (own / "status.json").write_text(json.dumps(report))
        code, findings = sound.check()
    assert code == 2
    assert len(findings) == 2
    assert "6f1c.log: the registry refuses the schema" in findings[0]
    assert "though a shipper runs" in findings[1]


_ON_DDL = "CREATE TRIGGER {} {} ANY DDL STATEMENT AS BEGIN {} END"


@pytest.mark.engine
def test_triggers_on_ddl_that_use_captured_tables_are_named(
    sound: Installation, work: Work, published: tuple[str, ...], tmp_path: Path
) -> None:
    database = tmp_path / "shop.fdb"
    work(
        database,
        [
            "CREATE TABLE LOG_ (N INTEGER PRIMARY KEY)",
            "CREATE TABLE DEEP (N INTEGER PRIMARY KEY)",
            "CREATE TABLE STARTED (N INTEGER PRIMARY KEY)",
            "CREATE TABLE UNHEARD (N INTEGER PRIMARY KEY)",
            "CREATE PROCEDURE P AS BEGIN DELETE FROM DEEP; END",
            "CREATE TRIGGER OF_LOG FOR LOG_ AFTER INSERT AS BEGIN INSERT INTO STARTED VALUES (1);"
            " END",
            "CREATE PACKAGE PK AS BEGIN PROCEDURE Q; END",
            "CREATE PACKAGE BODY PK AS BEGIN PROCEDURE Q AS BEGIN EXECUTE PROCEDURE P; END END",
            *published,
            "ALTER DATABASE EXCLUDE TABLE UNHEARD FROM PUBLICATION",
        ],
    )
    assert not [text for text in sound.check(str(database))[1] if "on DDL" in text]
    work(
        database,
        [
            _ON_DDL.format("ELSEWHERE", "AFTER", "DELETE FROM UNHEARD;"),
            _ON_DDL.format(
                "READS", "AFTER", "IF (EXISTS (SELECT 1 FROM LOG_)) THEN EXIT; /* INSERT */"
            ),
            _ON_DDL.format("RUNS", "BEFORE", "EXECUTE STATEMENT 'DELETE FROM UNHEARD';"),
            _ON_DDL.format("BY_PACKAGE", "BEFORE", "EXECUTE PROCEDURE PK.Q;"),
            _ON_DDL.format("DIRECT", "AFTER", "DELETE FROM LOG_; /* жук */"),
        ],
    )
    code, findings = sound.check(str(database))
    assert code == 1
    triggers = re.compile(
        r"^(\w+): \S+ the trigger (\w+) on DDL (?:uses captured tables \((.*)\))?"
    )
    found = [match.groups() for match in map(triggers.match, findings) if match]
    assert found == [
        ("warning", "BY_PACKAGE", "DEEP"),
        ("warning", "DIRECT", "LOG_, STARTED"),
        ("note", "RUNS", None),
    ]
    assert any("can't be told from here" in text for text in findings)


@pytest.mark.engine
def test_the_publication_of_a_database_is_looked_at(
    sound: Installation, work: Work, published: tuple[str, ...], tmp_path: Path
) -> None:
    database = tmp_path / "shop.fdb"
    work(
        database,
        [
            "CREATE TABLE INDEXED (N INTEGER NOT NULL, M INTEGER)",
            "CREATE UNIQUE INDEX I ON INDEXED (N)",
            "CREATE TABLE KEYLESS (N INTEGER UNIQUE)",
        ],
    )
    code, findings = sound.check(str(database))
    assert code == 2
    assert ["publication is off" in f or "no table is in" in f for f in findings] == [True, True]
    work(database, published)
    code, findings = sound.check(str(database))
    assert (code, len(findings)) == (0, 1), findings
    assert findings[0].startswith("note: ")
    assert "tables without primary or unique key: KEYLESS;" in findings[0]
    options = sound.options.read_text()
    for line in ("message.key.columns: .*KEYLESS:N\n", "table.exclude.list: .*KEYLESS\n"):
        sound.options.write_text(options + line)
        assert sound.check(str(database)) == (0, [])
    sound.options.write_text(options)
    work(database, ["ALTER DATABASE EXCLUDE TABLE KEYLESS FROM PUBLICATION"])
    code, findings = sound.check(str(database))
    assert (code, len(findings)) == (1, 1), findings
    assert "outside its publication, whose changes are not captured: KEYLESS" in findings[0]
    assert "table.exclude.list" in findings[0]
    sound.options.write_text(options + "table.exclude.list: .*KEYLESS\n")
    code, findings = sound.check(str(database))
    assert code == 0, findings

    work(database, ["CREATE TABLE A$1 (N INTEGER PRIMARY KEY)"])
    work(database, ['CREATE TABLE "A#1" (N INTEGER PRIMARY KEY)'])
    code, findings = sound.check(str(database))
    assert (code, len(findings)) == (2, 1), findings
    assert f"table A$1 in {database} and table A#1 in {database} would share the t" in findings[0]
    assert "-> leave one of them out with table.exclude.list" in findings[0]
    work(database, ["DROP TABLE A$1"])

    with sound.options.open("a") as file:
        file.write(f"connector.canary.tables: {database}.CANARY\n")
    code, findings = sound.check(str(database))
    assert (code, len(findings)) == (2, 1), findings
    assert "its canary: there is no table" in findings[0]
    work(database, ["CREATE TABLE CANARY (ID INTEGER PRIMARY KEY, WRITTEN_AT TIMESTAMP)"])
    assert sound.check(str(database)) == (0, [])

    sound.replace("replication.conf", "database\n", "database = /somewhere/else.fdb\n")
    code, findings = sound.check(str(database))
    assert (code, len(findings)) == (2, 1), findings
    assert f"{database} is not captured" in findings[0]
    assert f"--database {database}" in findings[0]


@pytest.mark.engine
@in_turn("way", ["alias", "link", "relative"])
def test_database_is_looked_at_by_its_own_path_however_it_is_named(
    sound: Installation, work: Work, published: tuple[str, ...], tmp_path: Path, way: str
) -> None:
    database = tmp_path / "shop.fdb"
    work(database, ["CREATE TABLE KEYED (N INTEGER PRIMARY KEY)", *published])
    (sound.root / "databases.conf").write_text(f"shop = {database}\n")
    (tmp_path / "link.fdb").symlink_to(database)
    paths = {"alias": "shop", "link": tmp_path / "link.fdb", "relative": os.path.relpath(database)}
    named = str(paths[way])
    with sound.options.open("a") as file:
        file.write(f"table.include.list: {database}.KEYED\n")
    work(database, ["ALTER DATABASE EXCLUDE TABLE KEYED FROM PUBLICATION"])
    code, findings = sound.check(named)
    assert (code, len(findings)) == (1, 1), findings
    assert "outside its publication, whose changes are not captured: KEYED" in findings[0]

    work(database, ["ALTER DATABASE INCLUDE TABLE KEYED TO PUBLICATION"])
    assert sound.check(named) == (0, [])
    sound.replace("replication.conf", "database\n", "database = /somewhere/else.fdb\n")
    code, findings = sound.check(named)
    assert (code, len(findings)) == (2, 1), findings
    assert f"{named} is not captured" in findings[0]


@pytest.mark.parametrize(
    ("defect", "what", "remedy"),
    [
        (_logs_gone, "does not exist", "install -d -m 750"),
        (_log_of_somebody_else, "in a folder that is open to all", "remove it"),
    ],
)
def test_a_log_that_the_servers_user_cannot_write_is_a_warning(
    sound: Installation, defect: Defect, what: str, remedy: str
) -> None:
    defect(sound)
    code, findings = sound.check()
    assert code == 1
    (finding,) = findings
    assert finding.startswith(f"warning: {sound.root}/firebird_cdc_logging.yaml, file: ")
    assert what in finding
    assert remedy in finding
