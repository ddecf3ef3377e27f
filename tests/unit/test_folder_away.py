"""A journal folder that is away for a while, and comes back with what waits in it."""

from __future__ import annotations

import threading
from pathlib import Path

from test_ledgers import Scene

from firebird_cdc.config import load_config
from firebird_cdc.demo.processes import await_condition
from firebird_cdc.journal.shipper.loop import Shipper


def test_transactions_of_a_folder_that_was_away_and_came_back_wait_again_and_are_kept(
    tmp_path: Path,
) -> None:
    folder, away = tmp_path / "journals", tmp_path / "away"
    folder.mkdir()
    scene = Scene(folder)
    journal = scene.open()
    home = journal.header.uuid
    scene.commit(journal, journal, journal)
    options = tmp_path / "connector.yaml"
    options.write_text(
        f"connector.name: t\nconnector.journal.directory: {folder}\nkafka.topic.prefix: t\n"
        "kafka.producer.bootstrap.servers: 127.0.0.1:9\nkafka.producer.close.timeout.ms: 100\n"
        "kafka.producer.transactional.id: t\n"
    )
    shipper = Shipper(load_config(options))

    def await_waiting(count: int) -> None:
        await_condition(f"{count} to wait", lambda: len(shipper._backlog) == count, 60)

    thread = threading.Thread(target=shipper.run)
    thread.start()
    try:
        await_waiting(3)
        folder.rename(away)
        folder.mkdir()
        await_waiting(0)
        folder.rename(tmp_path / "other")
        away.rename(folder)
        await_waiting(3)
        closed = folder / scene.close(journal)
        await_condition("it to be read again", lambda: shipper._backlog.holds(home), 60)
        await_waiting(3)
    finally:
        shipper.stop()
        shipper.stop()
        thread.join(60)
        scene.ledger.close()
        scene.folder.close()
    assert closed.exists()
