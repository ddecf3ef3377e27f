"""Files that a server needs of the Python environment that firebird-cdc is installed in."""

from __future__ import annotations

import importlib.util
import os
import sys
import sysconfig
from pathlib import Path

import firebird_cdc
from firebird_cdc.errors import SetupError

#: Importable names the bridge and the embedded shipper need, one per distribution.
NEEDED_MODULES = (
    "anyascii",
    "cffi",
    "_cffi_backend",
    "confluent_kafka",
    "firebird.driver",
    "google_crc32c",
    "orjson",
    "logbook",
    "yaml",
    "watchdog",
)

_NATIVE = Path(firebird_cdc.__file__).parent / "native"


def plugin_library() -> Path:
    """Return the native plugin of this installation. Raises SetupError if it was never built."""
    return _built("libfirebird_cdc.so")


def embedding_library() -> Path:
    """Return the embedding built for this Python. Raises SetupError if there is none."""
    return _built(embedding_name(sys.version_info[1]))


def embedding_name(minor: int) -> str:
    """Return the file name of the embedding for Python 3.MINOR."""
    machine = sysconfig.get_config_var("MULTIARCH") or f"{os.uname().machine}-linux-gnu"
    return f"_embedding.cpython-3{minor}-{machine}.so"


def python_directories() -> list[Path]:
    """Return the folders that firebird_cdc and all it needs are imported from.

    An editable installation's source folder comes last: it has rooms with everyday names.
    Raises SetupError naming what is not installed.
    """
    folders: dict[Path, None] = {}
    missing = []
    for name in NEEDED_MODULES:
        folder = _home_of(name)
        if folder is None:
            missing.append(name)
        elif not _standard(folder):
            folders[folder] = None
    if missing:
        raise SetupError(
            f"this Python ({sys.executable}) lacks {', '.join(missing)}: the server could not "
            "run the bridge. Install firebird-cdc with its dependencies: pip install . in its clone"
        )
    folders[Path(firebird_cdc.__file__).resolve().parent.parent] = None
    return list(folders)


def libpython(beside: Path) -> Path | None:
    """Return the shared library of this Python, or None if there is none.

    beside: a folder to look into too; an engine's root may bring libraries of its own.
    """
    name = f"libpython3.{sys.version_info[1]}.so.1.0"
    folders = [
        # First: a Python that was moved says LIBDIR of where it was built.
        os.path.join(sys.base_prefix, "lib"),  # noqa: PTH118
        sysconfig.get_config_var("LIBDIR") or "",
        os.path.join(  # noqa: PTH118 - either part may be missing
            sysconfig.get_config_var("LIBDIR") or "", sysconfig.get_config_var("MULTIARCH") or ""
        ),
        str(beside),
    ]
    for folder in folders:
        if folder and (Path(folder) / name).is_file():
            return (Path(folder) / name).resolve()
    return None


def _built(name: str) -> Path:
    path = _NATIVE / name
    if not path.is_file():
        raise SetupError(
            f"{path} is missing: firebird-cdc was installed without building its native part. "
            "Install gcc and Python's headers (apt-get install gcc libc6-dev python3-dev) and run: "
            "pip install --force-reinstall --no-deps . in the clone of firebird-cdc"
        )
    return path


def _home_of(name: str) -> Path | None:
    """Return the folder on sys.path that module NAME comes from."""
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        return None
    if spec is None or spec.origin is None:
        return None
    depth = name.count(".") + (1 if spec.submodule_search_locations else 0)
    return Path(spec.origin).parents[depth].absolute()


def _standard(folder: Path) -> bool:
    return folder == Path(sysconfig.get_path("stdlib")) or folder.name == "lib-dynload"
