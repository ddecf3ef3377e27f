"""Acts as the account of a server does: what it may do, and programs that it runs."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from firebird_cdc.packaging.server.layout import Account


def run_as(
    account: Account, argv: Sequence[str], timeout_s: float = 60
) -> subprocess.CompletedProcess[str]:
    """Run a command as the server's user if we may, else as ourselves. Raises OSError, also
    (TimeoutError) where it does not end in time."""
    other = os.geteuid() == 0 and account.uid != 0
    try:
        return subprocess.run(
            argv,
            user=account.uid if other else None,
            group=account.gid if other else None,
            extra_groups=[] if other else None,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
            cwd="/",
        )
    except subprocess.TimeoutExpired:
        what = f"it did not end within {timeout_s:.0f} s"
        raise TimeoutError(errno.ETIMEDOUT, what, argv[0]) from None


def may(account: Account, access: str, path: Path) -> bool:
    """Tell whether the server's user may read ("r"), write ("w") or enter ("x") PATH."""
    return run_as(account, ["test", f"-{access}", str(path)]).returncode == 0
