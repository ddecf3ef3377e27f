"""States of transactions that the confirmer reads from a database's inventory pages."""

from __future__ import annotations

import pytest
from capture import Capture

from firebird_cdc.journal.folder.inventory import TransactionInventory, TransactionState

pytestmark = [pytest.mark.engine, pytest.mark.plain]


def test_inventory_states_equal_those_of_the_engine(capture: Capture) -> None:
    """Over several inventory pages; also of one that a killed process left open."""
    capture.create("CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY)", publish=False)
    attachment = capture.attach()
    page_size = attachment.execute("SELECT MON$PAGE_SIZE S FROM MON$DATABASE")[0]["S"]
    attachment.commit()
    per_page = (page_size - 20) * 4
    attachment.immediate(
        f"EXECUTE BLOCK AS DECLARE I INT = 0; BEGIN WHILE (I < {2 * per_page + 50}) DO BEGIN"
        " IN AUTONOMOUS TRANSACTION DO DELETE FROM T; I = I + 1; END END"
    )
    attachment.commit()
    committed = []
    for number in range(6):
        attachment.execute("INSERT INTO T VALUES (?)", number)
        current = attachment.execute("SELECT CURRENT_TRANSACTION N FROM RDB$DATABASE")[0]["N"]
        committed.append(current)
        attachment.commit()
    attachment.execute("INSERT INTO T VALUES (50)")
    killed = [attachment.execute("SELECT CURRENT_TRANSACTION N FROM RDB$DATABASE")[0]["N"]]
    capture.clients.pop().kill()
    inventory = TransactionInventory(capture.database)
    assert inventory.states(killed, durable=True) == [TransactionState.ACTIVE]
    attachment = capture.attach()
    attachment.execute("SELECT COUNT(*) FROM T")
    attachment.commit()
    assert inventory.states(committed, durable=True) == [TransactionState.COMMITTED] * 6
    seen = inventory.identify()
    assert inventory.states([seen.last_transaction + 1], durable=True) == [TransactionState.UNKNOWN]
    assert seen.last_transaction > 2 * per_page
    guid = attachment.execute("SELECT RDB$GET_CONTEXT('SYSTEM', 'DB_GUID') G FROM RDB$DATABASE")[0][
        "G"
    ]
    assert guid.strip("{}").lower() == str(seen.incarnation.guid)
    inventory.close()
