"""Builds the three native libraries; everything else stands in pyproject.toml.

``libfirebird_cdc.so`` is the plugin that the engine loads: plain C, nothing but libc.
``_embedding.cpython-3XX-*.so`` carries the bridge for the Python that builds it.
``_journal_files.abi3.so`` is a module for the shipper, for every Python.
``_shared_page.py`` knows the layout of the page that the plugin and all commands share, and of the
file ``join``.
FIREBIRD_CDC_PYTHON_INCLUDE names a folder with Python.h where the system has none;
FIREBIRD_CDC_SANITIZE=address,undefined builds both with sanitizers;
FIREBIRD_CDC_FAILPOINTS=1 only a plugin, that dies where a test tells it to (native/failpoint.h).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "native"))
import cffi_build  # noqa: E402

PLUGIN = "firebird_cdc.native.libfirebird_cdc"
EMBEDDING = "firebird_cdc.native._embedding"
FILES = "firebird_cdc.native._journal_files"
PLUGIN_SOURCES = (
    "access", "blobs", "calls", "cancels", "catalogue", "commits", "counters", "crc32c",
    "databases", "ddl_words", "definitions", "engine_version", "events", "folder", "gap",
    "gap_counts", "host", "identify", "join", "journal", "own_attachment", "own_file", "plugin",
    "policy", "python", "reading", "rows", "savepoints", "sequences", "session", "shapes",
    "shared_journal", "shared_page", "slots", "spawn", "sync", "threads", "timing",
    "transaction", "transaction_journal",
)  # fmt: skip
FILES_SOURCES = ("crc32c", "event_json", "journal_files", "split_transaction")

COMPILE = [
    "-std=gnu11", "-O2", "-g", "-Wall", "-fvisibility=hidden", "-fstack-protector-strong",
    "-fstack-clash-protection", "-fcf-protection", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2",
]  # fmt: skip
STRICT = ["-Wextra", "-Wshadow", "-Wvla", "-Werror"]
LINK = ["-Wl,-z,relro", "-Wl,-z,now", "-Wl,-z,noexecstack", "-Wl,-z,nodelete", "-Wl,--as-needed"]

sanitize = os.environ.get("FIREBIRD_CDC_SANITIZE")
if sanitize:
    # Python's own flags have -fwrapv, under which no overflow is undefined.
    COMPILE += [f"-fsanitize={sanitize}", "-fno-omit-frame-pointer", "-fno-wrapv"]
    COMPILE += ["-U_FORTIFY_SOURCE"]
    LINK += [f"-fsanitize={sanitize}"]


failpoints = os.environ.get("FIREBIRD_CDC_FAILPOINTS") == "1"
if failpoints:
    COMPILE += ["-DFBC_FAILPOINTS"]
    PLUGIN_SOURCES += ("failpoint",)


class BuildNative(build_ext):
    """Generates the embedding's source and gives the plugin the name the engine looks for."""

    def run(self) -> None:
        cffi_build.generate_embedding(HERE / "native" / "_embedding.c")
        super().run()

    def get_ext_filename(self, fullname: str) -> str:
        if fullname == PLUGIN or fullname == PLUGIN.rpartition(".")[2]:
            return fullname.replace(".", "/") + ".so"
        return super().get_ext_filename(fullname)

    def get_export_symbols(self, ext: Extension) -> list[str]:
        if ext.name == FILES:
            return super().get_export_symbols(ext)
        return list(ext.export_symbols)  # the others are no extension modules with a PyInit_


include = os.environ.get("FIREBIRD_CDC_PYTHON_INCLUDE")
abi = [("FBC_BRIDGE_ABI", f"{cffi_build.bridge_abi()}u")]
cffi_build.generate_page(HERE / "firebird_cdc" / "native" / "_shared_page.py")
setup(
    cmdclass={"build_ext": BuildNative},
    ext_modules=[
        Extension(
            PLUGIN,
            [f"native/{name}.c" for name in PLUGIN_SOURCES],
            depends=[str(path.relative_to(HERE)) for path in HERE.glob("native/*.h")],
            define_macros=abi,
            extra_compile_args=COMPILE + STRICT,
            extra_link_args=LINK + ([] if sanitize else ["-Wl,-z,defs"]),
            libraries=["dl", "pthread"],  # parts of libc since glibc 2.34
            language="c",
        ),
        Extension(
            EMBEDDING,
            ["native/_embedding.c"],
            define_macros=abi,
            include_dirs=["native", *([include] if include else [])],
            depends=["native/bridge_api.h", "native/cffi_build.py"],
            extra_compile_args=COMPILE,
            extra_link_args=LINK,
            language="c",
        ),
        Extension(
            FILES,
            [f"native/{name}.c" for name in FILES_SOURCES],
            include_dirs=["native", *([include] if include else [])],
            depends=[str(path.relative_to(HERE)) for path in HERE.glob("native/*.h")],
            extra_compile_args=COMPILE + STRICT,
            extra_link_args=LINK,
            py_limited_api=True,
            language="c",
        ),
    ][: 1 if failpoints else None],
)
