"""Unit, user and folders by which systemd runs shippers, and what is special of one server."""

from __future__ import annotations

import importlib.resources
import pwd
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

SAMPLES: Final = Path(str(importlib.resources.files(__name__)))
UNIT: Final = "firebird-cdc-shipper@.service"
USER: Final = "firebird-cdc"
UNITS: Final = Path("/etc/systemd/system")
"""The folder of units that an administrator has, or we where no package has brought ours."""

_PACKAGED: Final = (Path("/usr/lib/systemd/system"), Path("/lib/systemd/system"))
_PROGRAM: Final = "/opt/firebird-cdc/current/bin/firebird-cdc"


def unit_text(program: Path) -> str:
    """Return the unit that runs PROGRAM."""
    return (SAMPLES / UNIT).read_text("utf-8").replace(_PROGRAM, str(program))


def is_packaged() -> bool:
    """Tell whether a package has brought the unit."""
    return any((folder / UNIT).exists() for folder in _PACKAGED)


def has_user() -> bool:
    """Tell whether the system has the user of shippers."""
    with suppress(KeyError):
        return bool(pwd.getpwnam(USER))
    return False


def instance(connector_name: str) -> str:
    """Return the name of the unit of a connector, as systemd.unit(5) writes any text in one."""

    def escaped(found: re.Match[str]) -> str:
        return "".join(f"\\x{byte:02x}" for byte in found[0].encode())

    name = re.sub(r"[^A-Za-z0-9:_.]|^\.", escaped, connector_name)
    return UNIT.replace("@", f"@{name}")


def drop_in(
    user: str, group: str, environment: dict[str, Path], folders: Iterable[Path]
) -> tuple[str, str]:
    """Return name and text of what an instance adds to the unit. FOLDERS: those it writes."""
    lines = [
        "# Made by `firebird-cdc install`, which makes it anew when it runs again.",
        "[Service]",
        f"User={user}",
        f"Group={group}",
        *(f"Environment={_quoted(f'{name}={path}')}" for name, path in environment.items()),
        *(f"ReadWritePaths={_quoted(f'-{path}')}" for path in folders),
    ]
    return "firebird-cdc.conf", "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"' if re.search(r"[\s\"\'\\]", text) else escaped
