"""Generates the C of the embedding: the library that carries the bridge into the server.

One is built per Python minor version. It is not linked to libpython: its symbols come from
the Python that the process already has, or that the plugin opened before it.
"""

from __future__ import annotations

from pathlib import Path

import cffi

_HERE = Path(__file__).resolve().parent

_ENTRY = """
int fbc_bridge_start(struct fbc_host_api *host, const char *connector_config,
                     const char *logging_config, const char *python_dirs,
                     char *error, int error_size);
"""

_INIT = """
from _embedding import ffi
from firebird_cdc.bridge import embedded

embedded.define(ffi)
"""


def generate(target: Path) -> None:
    """Write the embedding's C source to ``target``."""
    header = (_HERE / "bridge_api.h").read_text(encoding="utf-8")
    declarations = header.partition("/* cffi reads from here */")[2]
    declarations = declarations.partition("/* cffi reads to here */")[0]
    builder = cffi.FFI()
    builder.cdef(declarations)
    builder.embedding_api(_ENTRY)
    builder.embedding_init_code(_INIT)
    builder.set_source("_embedding", '#include "bridge_api.h"\n')
    builder.emit_c_code(str(target))
