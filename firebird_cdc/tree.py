"""Versions of firebird-cdc beside each other under one prefix: packages and the bundle place them.

``<prefix>/versions/<version>/`` holds a version with its own Python, ``<prefix>/current`` is a link
to the one in use. All that servers are told goes by way of that link, so that one rename switches
them; a process that has loaded the plugin keeps to the version of that (native/plugin.c,
native/own_file.c).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import firebird_cdc

VERSIONS = "versions"
CURRENT = "current"
TREE_MANIFEST = "manifest"


@dataclass(frozen=True, slots=True)
class Tree:
    """One version under ``prefix``, in the folder ``version``. What names a minor version of Python
    stands behind links in ``lib/``, so that the paths below hold for every version."""

    prefix: Path
    version: str

    @property
    def folder(self) -> Path:
        """The folder of this version."""
        return self.prefix / VERSIONS / self.version

    @property
    def current(self) -> Path:
        """The link to the version in use."""
        return self.prefix / CURRENT

    @property
    def link_target(self) -> Path:
        """Target of that link if this version is in use."""
        return Path(VERSIONS, self.version)

    @property
    def plugin(self) -> Path:
        """The plugin of the version in use."""
        return self.current / "lib/libfirebird_cdc.so"

    @property
    def python(self) -> Path:
        """Python's shared library of the version in use."""
        return self.current / "lib/libpython.so"

    @property
    def packages(self) -> Path:
        """The folder of Python packages of the version in use."""
        return self.current / "lib/packages"

    @property
    def home(self) -> Path:
        """The home of Python of the version in use."""
        return self.current / "python"

    def version_in_use(self) -> str | None:
        """Return the name of the version that the link leads to; None if there is none."""
        try:
            target = self.current.readlink()
        except OSError:
            return None
        return target.name if target.parent.name == VERSIONS else None

    def is_in_use(self) -> bool:
        """Tell whether the link leads to this version."""
        return self.version_in_use() == self.version

    def others(self) -> list[Path]:
        """Return the folders of the other versions, and what killed runs have left of some."""
        found = (self.prefix / VERSIONS).iterdir()
        return sorted(path for path in found if path.is_dir() and path != self.folder)


def installed_version() -> str:
    """Return the version that this process runs, as precisely as it is known: two builds of one
    release are other versions where they lie beside each other."""
    tree = running_tree()
    return firebird_cdc.__version__ if tree is None else tree.version


@cache
def running_tree() -> Tree | None:
    """Return the tree that this process runs from, None if it runs from another kind of place."""
    for folder in Path(firebird_cdc.__file__).resolve().parents:
        if folder.parent.name == VERSIONS and (folder / TREE_MANIFEST).is_file():
            return Tree(folder.parent.parent, folder.name)
    return None
