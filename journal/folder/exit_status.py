"""Exit status of a shipper that ended by itself: nobody waits for an embedded one's exit code.

Whoever starts shippers (``bridge.shipper``) reads why the last one ended, and doesn't start the
next one into the same end. ``firebird-cdc status`` shows it while none runs.
"""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass
from pathlib import Path

from firebird_cdc.errors import ConfigError, ShipperFenced
from firebird_cdc.journal.folder.durable import replace_file
from firebird_cdc.journal.folder.locks import STATE_DIRECTORY

_FINAL = (ConfigError.exit_code, ShipperFenced.exit_code)
_HOLD_S = 600.0


@dataclass(frozen=True, slots=True)
class LastWords:
    """Exit status of a shipper. ``code``: exit code. ``text``: for the user.

    ``config_ns``: when the configuration was changed last, before it was read. ``at``: time of day.
    ``config``: path of the configuration; an earlier version leaves it empty.
    """

    code: int
    text: str
    config_ns: int
    at: float
    config: str = ""

    @property
    def is_refusal(self) -> bool:
        """Tell whether the shipper ended because its configuration is wrong."""
        return self.code == ConfigError.exit_code

    def hold_s(self, config: Path) -> float:
        """For how long no other shipper is to be started with CONFIG, seconds.

        A configuration that is refused is refused again, and one that another shipper has taken
        its transactional id from must not take it back in turns.
        """
        if self.code not in _FINAL or self.config_ns != changed_ns(config):
            return 0.0
        left = self.at + _HOLD_S - time.time()
        return left if 0.0 < left <= _HOLD_S else 0.0  # the clock may have been set back


def words_path(directory: Path) -> Path:
    """Return the path at which the shipper of journal folder DIRECTORY leaves its exit status."""
    return directory / STATE_DIRECTORY / "shipper.last-words"


def changed_ns(config: Path) -> int:
    """Return when CONFIG was changed last, in nanoseconds since 1970; 0 if it isn't there."""
    try:
        return config.stat().st_mtime_ns
    except OSError:
        return 0


def leave(path: Path, words: LastWords) -> None:
    """Write WORDS; without a place for them, the next shipper comes to the same end sooner."""
    content = json.dumps([words.code, words.text, words.config_ns, words.at, words.config])
    with contextlib.suppress(OSError):
        replace_file(path, content.encode(), owner_of=path.parent, is_synced=False)


def read(path: Path) -> LastWords | None:
    """Return what the last shipper left; None if it ended in order or by force."""
    try:
        code, text, config_ns, at, *config = json.loads(path.read_text(encoding="utf-8"))
        return LastWords(int(code), str(text), int(config_ns), float(at), *map(str, config[:1]))
    except (OSError, ValueError, TypeError):
        return None


def of_last_shipper(directory: Path) -> LastWords | None:
    """Return what the last shipper of the journal folder DIRECTORY left.

    None too if its configuration was refused and has been changed since: nobody knows yet what the
    next one makes of it.
    """
    words = read(words_path(directory))
    if words is None or not (words.is_refusal and words.config):
        return words
    return words if changed_ns(Path(words.config)) in (words.config_ns, 0) else None
