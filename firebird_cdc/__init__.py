"""Change data capture for Firebird and RED Database servers.

The packages within it are the folders at the top of the repository:
``native`` (the plugin in C), ``bridge`` (what runs inside the server), ``journal``
(the journal format and all that reads it), ``config``, ``packaging`` and ``demo``.
"""

import sys as _sys

from firebird_cdc import moved as _moved

__version__ = "0.2.0"

archive: str | None = getattr(globals().get("__loader__"), "archive", None)
"""Path of the archive for Spark that this was imported from, None if it is installed."""

if archive is not None:
    # Its libraries are for a Python that has none of its own.
    _sys.path.append(f"{archive}/lib")

_moved.install()
