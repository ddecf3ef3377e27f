"""``enable`` by a user of a Firebird 4 server elsewhere, with a password from a file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import forked
import pytest

if TYPE_CHECKING:
    from firebird_cdc.demo.engine import EmbeddedRoot
    from firebird_cdc.demo.firebird4 import Firebird4

pytestmark = pytest.mark.server


def test_a_user_with_the_right_to_enables_a_database_that_is_in_use(
    firebird4: Firebird4, engine_root: EmbeddedRoot, client: Any, tmp_path: Path
) -> None:
    options, password = tmp_path / "connector.yaml", tmp_path / "password"
    password.write_text("Käfig 7\n", "utf-8")
    options.write_text(
        f"connector.name: test\n"
        f"connector.journal.directory: {tmp_path / 'journals'}\n"
        "kafka.producer.bootstrap.servers: 127.0.0.1:9\n"
        "kafka.topic.prefix: test\n"
        "database.hostname: 127.0.0.1\n"
        f"database.port: {firebird4.port}\n"
        "database.user: CDC\n"
        f"database.password.file: {password}\n"
        f"database.client.library: {engine_root.client_library}\n"
    )
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("FIREBIRD", "ISC_"))}
    name = str(firebird4.inner(firebird4.folder / "shop.fdb"))

    def run(*words: str, code: int = 0) -> str:
        argv = [sys.executable, "-P", "-m", "firebird_cdc", *words, "--config", str(options)]
        done = forked.run(
            argv, env=kept, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        assert done.returncode == code, done.stdout
        return done.stdout

    assert "see that the server runs" in run("enable", name, code=1)
    firebird4.start()
    dsn = firebird4.dsn(firebird4.folder / "shop.fdb")
    with client.create_database(dsn, charset="UTF8") as connection:
        for statement in (
            "CREATE OR ALTER USER CDC PASSWORD 'Käfig 7'",
            'CREATE TABLE "Größe" (ID INTEGER NOT NULL PRIMARY KEY)',
        ):
            connection.execute_immediate(statement)
            connection.commit()
        connection.execute_immediate('INSERT INTO "Größe" VALUES (1)')  # and its transaction stays

        assert "there is no such database" in run("enable", f"{name}x", code=1)
        assert "GRANT ALTER DATABASE TO USER" in run("enable", name, code=1)
        with client.connect(dsn) as other:
            other.execute_immediate("GRANT ALTER DATABASE TO USER CDC")
            other.commit()
        assert "ran ALTER DATABASE ENABLE PUBLICATION" in run("enable", name)
        assert "Größe  ID   test." in run("tables", name)
        assert "Nothing to do" in run("enable", name)
        password.write_text("another\n")
        assert "database.password.file in the" in run("disable", name, code=1)
        password.write_text("Käfig 7\n", "utf-8")
        assert "ran ALTER DATABASE EXCLUDE ALL" in run("disable", name)
        connection.rollback()
        connection.execute_immediate("DROP USER CDC")
        connection.commit()
