"""Generates what cffi makes of the plugin's headers: the embedding's C, and layouts of files.

The embedding is the library that carries the bridge into the server. One is built per Python minor
version. It is not linked to libpython: its symbols come from the Python that the process already
has, or that the plugin opened before it.
"""

from __future__ import annotations

import zlib
from pathlib import Path

import cffi

_HERE = Path(__file__).resolve().parent

_ENTRY = """
int fbc_bridge_start(struct fbc_host_api *host, const char *connector_config,
                     const char *logging_config, const char *python_dirs,
                     char *error, int error_size);
"""

# The plugin looks at it before it calls anything.
_SOURCE = """
#include "bridge_api.h"
__attribute__((visibility("default"))) const uint32_t fbc_bridge_abi = FBC_BRIDGE_ABI;
"""

_INIT = """
from _embedding import ffi
from firebird_cdc.bridge import embedded

embedded.define(ffi)
"""


def generate_embedding(target: Path) -> None:
    """Write the embedding's C source to ``target``."""
    builder = cffi.FFI()
    builder.cdef(_declarations("bridge_api.h"))
    builder.embedding_api(_ENTRY)
    builder.embedding_init_code(_INIT)
    builder.set_source("_embedding", _SOURCE)
    builder.emit_c_code(str(target))


def generate_page(target: Path) -> None:
    """Write a Python module to ``target`` whose ``ffi`` knows the shared page and the file join."""
    builder = cffi.FFI()
    builder.cdef("typedef uint64_t fbc_shared_u64;" + _declarations("shared_page.h"))
    builder.cdef(_declarations("join.h"))
    builder.set_source("_shared_page", None)
    builder.emit_python_code(str(target))
    with target.open("a", encoding="utf-8") as file:
        file.write(f"BRIDGE_ABI = {bridge_abi()}\n")


def bridge_abi() -> int:
    """Return by what plugin, embedding and bridge tell whether they have the same declarations."""
    return zlib.crc32(_declarations("bridge_api.h").encode())


def _declarations(header: str) -> str:
    """Return the part of the header that is for cffi too."""
    text = (_HERE / header).read_text(encoding="utf-8")
    text = text.partition("/* cffi reads from here */")[2]
    return text.partition("/* cffi reads to here */")[0]
