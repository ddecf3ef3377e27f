"""Makes a prefix with versions beside each other, of this clone and this machine's Python."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from firebird_cdc.packaging.server import runtime

_CLONE = Path(__file__).parent.parent.parent
_PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from firebird_cdc.cli import main; sys.exit(main())"
)


class Prefix:
    """A folder with versions, as packages place them."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, version: str) -> Path:
        """Place VERSION, which is the clone under another number, and return its folder."""
        folder = self.path / "versions" / version
        packages = folder / "packages"
        shutil.copytree(
            _CLONE / "firebird_cdc", packages / "firebird_cdc", ignore=_unneeded, symlinks=False
        )
        packages.joinpath("others.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
        code = packages / "firebird_cdc/__init__.py"
        changed = code.read_text().replace(
            f'__version__ = "{_clone_version()}"', f'__version__ = "{version}"'
        )
        code.write_text(changed)
        folder.joinpath("python").symlink_to(sys.base_prefix)
        library = runtime.libpython(folder)
        assert library is not None
        native = packages / "firebird_cdc/native"
        lib = folder / "lib"
        lib.mkdir()
        lib.joinpath("libfirebird_cdc.so").symlink_to(native / "libfirebird_cdc.so")
        lib.joinpath("libpython.so").symlink_to(library)
        lib.joinpath("packages").symlink_to(packages)
        folder.joinpath("manifest").write_text(version)
        return folder

    def run(self, version: str, *arguments: object) -> subprocess.CompletedProcess[str]:
        """Run a command of VERSION to its end."""
        return subprocess.run(
            self.command(version, *arguments), capture_output=True, text=True, check=False
        )

    def command(self, version: str, *arguments: object) -> list[str]:
        """Return how a command of VERSION is run."""
        packages = self.path / "versions" / version / "packages"
        given = [str(packages), *map(str, arguments)]
        return [sys.executable, "-I", "-c", _PROGRAM, *given]

    @property
    def in_use(self) -> str:
        """The version that the link leads to."""
        return (self.path / "current").readlink().name


def _clone_version() -> str:
    import firebird_cdc

    return firebird_cdc.__version__


def _unneeded(_: str, names: list[str]) -> set[str]:
    return {name for name in names if name in ("__pycache__", "demo") or name[-2:] in (".c", ".o")}
