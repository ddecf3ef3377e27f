from __future__ import annotations

import threading
from uuid import UUID

from firebird_cdc.clock import now_us
from firebird_cdc.journal.shipper.monitoring.statistics import (
    BacklogFigures,
    DatabaseBacklog,
    LastEvent,
    Statistics,
)

DEPOT = "/srv/depot.fdb"


def test_a_database_and_a_canary_are_made_once_and_then_kept() -> None:
    statistics = Statistics()
    depot = statistics.database(DEPOT)
    depot.add("GOODS", "c")
    depot.add("GOODS", "c", 3)
    assert statistics.database(DEPOT) is depot
    assert depot.events == {("GOODS", "c"): 4}
    canary = statistics.canary(f"{DEPOT}.CANARY", DEPOT)
    assert statistics.canary(f"{DEPOT}.CANARY", DEPOT) is canary


def test_the_latency_is_counted_from_the_commit_and_is_never_negative() -> None:
    depot = Statistics().database(DEPOT)
    for ahead_us, least, most in ((-2_000_000, 2000, 12000), (+60_000_000, 0, 0)):
        depot.handled(LastEvent("GOODS", UUID(int=1), 1, 1, 7, now_us() + ahead_us))
        assert least <= depot.latency_ms <= most
    assert depot.last_event is not None and depot.handled_us <= now_us()


def test_a_trouble_keeps_its_beginning_while_its_kind_stays() -> None:
    statistics = Statistics()
    statistics.trouble(DEPOT, "waiting", "Kafka says no")
    began = statistics.troubles[DEPOT].since_us
    statistics.trouble(DEPOT, "waiting", "Kafka says no again")
    assert statistics.troubles[DEPOT].since_us == began
    assert statistics.troubles[DEPOT].text == "Kafka says no again"
    assert not statistics.halted
    statistics.trouble(DEPOT, "halted", "journal 7 can't be read")
    assert statistics.troubles[DEPOT].since_us >= began
    assert list(statistics.halted) == [DEPOT]


def test_the_last_error_stays_when_its_trouble_has_passed() -> None:
    statistics = Statistics()
    statistics.clear("kafka")
    statistics.trouble("kafka", "waiting", "no broker can be reached")
    statistics.clear("kafka")
    assert statistics.troubles == {}
    assert statistics.last_error is not None
    assert statistics.last_error.text == "no broker can be reached"


def test_backlog_figures_add_up_over_databases() -> None:
    figures = BacklogFigures(
        {DEPOT: DatabaseBacklog(3, 1, 2, 5), "": DatabaseBacklog(1, 0, 1)}, 4096, 10, 1.5, 0
    )
    assert (figures.pending, figures.live, figures.quarantined) == (4, 1, 3)


def test_readers_may_copy_while_the_shipping_thread_writes() -> None:
    statistics, stop = Statistics(), threading.Event()
    errors: list[BaseException] = []

    def read() -> None:
        try:
            while not stop.is_set():
                for database in list(statistics.databases.values()):
                    assert all(count > 0 for count in dict(database.events).values())
                assert len(statistics.halted) <= 1
        except BaseException as error:
            errors.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(20000):
        statistics.database(f"/srv/{number % 50}.fdb").add(f"T{number % 500}", "u")
        statistics.trouble(DEPOT, "halted", str(number))
        statistics.clear(DEPOT)
    stop.set()
    reader.join()
    assert not errors
