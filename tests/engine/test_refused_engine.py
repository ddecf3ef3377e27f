"""An engine that can't be captured from. No build of it is to be had: ours is made to say it."""

from __future__ import annotations

from pathlib import Path

import pytest
from capture import Capture, SqlError, until
from test_gaps import _choose_gap, _leave_engine_defaults

from firebird_cdc.journal.format import Gap

pytestmark = pytest.mark.engine

_OURS, _ITS = b"LI-V5.0.4.1812 Firebird 5.0", b"LI-V4.0.0.2496 Firebird 4.0"
_WORDS = r"(?s)firebird-cdc.*Firebird 4\.0\.0 marks .* upgrade the server to Firebird 4\.0\.1"


def _become(capture: Capture, before: bytes, after: bytes) -> None:
    """Have the engine of the root tell another version of itself."""
    library = capture.root.path / "plugins/libEngine13.so"
    content = library.read_bytes()
    assert before in content
    made = Path(f"{library}.new")
    made.write_bytes(content.replace(before, after))
    made.chmod(0o755)
    made.rename(library)


@pytest.mark.parametrize("mode", ["refuse", "gap"])
def test_firebird_4_0_0_is_refused_by_name(capture: Capture, mode: str) -> None:
    if mode == "gap":
        _choose_gap(capture)
    _become(capture, _OURS, _ITS)
    capture.create("CREATE TABLE T (ID INTEGER)")
    attachment = capture.attach()
    with pytest.raises(SqlError, match=_WORDS):
        attachment.execute("INSERT INTO T VALUES (1)")
    attachment.rollback()
    assert attachment.execute("SELECT ID FROM T") == []
    assert not capture.live() and not capture.committed()


def test_refused_engine_that_ignores_errors_counts_commits_without_journals(
    capture: Capture,
) -> None:
    """A journal of such a transaction could be published though that was rolled back."""
    _leave_engine_defaults(capture)
    _become(capture, _OURS, _ITS)
    capture.create("CREATE TABLE T (ID INTEGER)")
    attachment = capture.attach()
    for number in (1, 2):
        attachment.execute("INSERT INTO T VALUES (?)", number)
        attachment.commit()
    attachment.execute("INSERT INTO T VALUES (3)")
    attachment.rollback()
    assert len(attachment.execute("SELECT ID FROM T")) == 2
    capture.end_clients()

    def reasons() -> list[str]:
        return [
            change.reason
            for journal in capture.read_all()
            for change in journal.changes
            if isinstance(change, Gap)
        ]

    until("the gaps to be marked", lambda: not capture.live() and reasons())
    assert all(journal.header.transaction == 0 for journal in capture.read_all())
    counted = [int(reason.split(" ", 1)[0]) for reason in reasons()]
    assert sum(counted) == 2
    assert "Firebird 4.0.0 marks" in reasons()[0]
