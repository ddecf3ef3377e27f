"""A root folder for the embedded Firebird 5 engine, with plugins and configuration of its own."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from pathlib import Path

from firebird_cdc.demo.paths import debian_library_directories
from firebird_cdc.errors import SetupError

# Several processes share a database only under Classic; the runtime's default, Super, locks the
# file for one of them.
_SETTINGS = {"ServerMode": "Classic"}
_MATH_LIBRARY = "libtommath.so.1"


class EmbeddedRoot:
    """Root directory of a process that runs the engine of the package firebird-embedded in itself.

    directory: made if missing. It gets links to the package's libraries, and its own
    firebird.conf, plugins.conf and replication.conf, so that `firebird-cdc install --server
    directory` serves it as it serves a server. firebird.log and replication.log appear in it.
    settings: further lines of firebird.conf.
    Raises SetupError if the package or a library that it needs is missing.

    An engine reads its root once, from the environment: start all processes that are to use
    this one with ``environment()``.
    """

    def __init__(self, directory: Path, settings: Mapping[str, str] | None = None) -> None:
        self.path = directory.resolve()
        runtime = _runtime()
        library = self.path / "lib"
        plugins = self.path / "plugins"
        library.mkdir(parents=True, exist_ok=True)
        plugins.mkdir(exist_ok=True)
        # The runtime's libraries look for what they need in ../lib beside them (their RPATH).
        for source in runtime.glob("lib*.so*"):
            _link(source, library / source.name)
        for folder in debian_library_directories():
            for source in folder.glob("lib*.so*"):
                _link(source, library / source.name)
        if not (library / _MATH_LIBRARY).exists() and not _loadable(_MATH_LIBRARY):
            raise SetupError(
                f"the Firebird engine needs {_MATH_LIBRARY}, which this machine lacks; "
                "get it: apt-get install libtommath1 (in a clone: make setup)"
            )
        for source in (runtime / "plugins").iterdir():
            _link(source, plugins / source.name)
        for name in ("intl", "tzdata", "firebird.msg"):
            _link(runtime / name, self.path / name)
        lines = [f"{name} = {value}" for name, value in {**_SETTINGS, **(settings or {})}.items()]
        (self.path / "firebird.conf").write_text("\n".join([*lines, ""]), encoding="utf-8")
        for name in ("plugins.conf", "replication.conf"):
            # Not links: installing the plugin edits them.
            if not (self.path / name).exists():
                shipped = runtime / name
                text = shipped.read_text(encoding="utf-8") if shipped.exists() else ""
                (self.path / name).write_text(text, encoding="utf-8")

    @property
    def client_library(self) -> Path:
        """The library for ``driver_config.fb_client_library`` of firebird-driver."""
        return self.path / "lib" / "libfbclient.so.2"

    @property
    def locks(self) -> Path:
        """Folder of the lock tables: whoever opens a database at the same time needs the same."""
        return self.path / "locks"

    def environment(self, base: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return ``base`` (default: this process's environment) pointing to this root."""
        environment = dict(os.environ if base is None else base)
        environment["FIREBIRD"] = str(self.path)
        # An engine that is killed leaves 6 MB behind for each database, in /tmp/firebird if not
        # told otherwise; here they go when the root does.
        environment["FIREBIRD_LOCK"] = str(self.locks)
        library = str(self.path / "lib")
        before = environment.get("LD_LIBRARY_PATH")
        environment["LD_LIBRARY_PATH"] = f"{library}:{before}" if before else library
        return environment


def _runtime() -> Path:
    try:
        from firebird.embedded.provider import FirebirdProvider
    except ImportError:
        raise SetupError(
            "the package firebird-embedded is missing; get it: pip install '.[demo]' in the clone"
        ) from None
    root: Path = FirebirdProvider().root
    return root


def _link(source: Path, target: Path) -> None:
    if target.is_symlink():
        if target.readlink() == source:
            return
        target.unlink()
    target.symlink_to(source)


def _loadable(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True
