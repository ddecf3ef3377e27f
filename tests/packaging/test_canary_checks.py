"""Facts that ``check`` can learn about a canary table."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from firebird_cdc.demo.engine import EmbeddedRoot

# Several canaries at once: an engine is loaded for each run.
_PROGRAM = """
import json, sys
from firebird import driver
from firebird_cdc.config.attachment import CanaryTable
from firebird_cdc.packaging.canaries import canary_problems
library, database, *asked = sys.argv[1:]
driver.driver_config.fb_client_library.value = library
with driver.connect(database, user="SYSDBA") as connection:
    found = [
        [what for what, _ in canary_problems(connection, CanaryTable(database, table), user)]
        for table, _, user in (item.partition("@") for item in asked)
    ]
print(json.dumps(found))
"""


@pytest.mark.engine
def test_tables_columns_publication_and_rights_are_looked_at(
    engine_root: EmbeddedRoot, work: Callable[[Path, Sequence[str]], None], tmp_path: Path
) -> None:
    database = tmp_path / "shop.fdb"
    good = "(ID INTEGER NOT NULL PRIMARY KEY, WRITTEN_AT TIMESTAMP)"
    work(
        database,
        [
            f'CREATE TABLE "Good" {good}',
            "CREATE TABLE BARE (ID INTEGER)",
            'ALTER DATABASE INCLUDE TABLE "Good" TO PUBLICATION',
            'GRANT SELECT, INSERT ON "Good" TO USER CDC',
        ],
    )
    asked = ["Good@", "Good@cdc", "BARE@SYSDBA", "NONE@CDC"]
    done = subprocess.run(
        [sys.executable, "-P", "-c", _PROGRAM, engine_root.client_library, database, *asked],
        env=engine_root.environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [
        [],
        ['user CDC lacks the right to UPDATE on table "Good"'],
        [
            'table "BARE" has no column WRITTEN_AT',
            'table "BARE" is outside the publication, so its writes are not captured',
        ],
        ['there is no table "NONE"'],
    ]
