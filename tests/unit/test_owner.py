"""To whom the files belong that commands leave."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from firebird_cdc.journal.shipped import acknowledge


def test_shipper_can_read_what_root_acknowledges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = tmp_path.stat()
    given: list[tuple[str, int, int]] = []
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(
        os, "chown", lambda path, uid, gid: given.append((Path(path).name, uid, gid))
    )
    (tmp_path / ".firebird-cdc").mkdir()
    acknowledge(tmp_path, "/srv/a.fdb")
    (wish,) = (tmp_path / ".firebird-cdc/shipped").glob("*.acknowledged")
    ids = (owner.st_uid, owner.st_gid)
    assert given == [("shipped", *ids), (f".{wish.name}.new", *ids)]
