"""Writes our man pages into a folder: one for each command, from the parsers that ``--help`` shows,
and one for the file of options, from the table that docs/reference.md is made from.

``python -P scripts/man_pages.py FOLDER``. SOURCE_DATE_EPOCH is the date that they bear.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from argparse_manpage.compat import get_reproducible_date
from argparse_manpage.manpage import Manpage

from firebird_cdc import __version__
from firebird_cdc.cli import build_parser
from firebird_cdc.config.options import OPTIONS, Group, Status

sys.path.insert(0, str(Path(__file__).parent))
from reference_page import option_row

FILE_PAGE = "reddatabase.connector.yaml"
_MANUAL = "firebird-cdc"
_SOURCE = f"firebird-cdc {__version__}"

_INTRODUCTION = """\
The server's plugin and the shipper read their options from one YAML file of flat dotted keys. The
environment variable FIREBIRD_CONNECTOR_CONFIG names it, else ConnectorConfig in plugins.conf, else
it lies in the server's directory. A variable FIREBIRD_CDC_OPTION_<NAME>, with __ for each dot,
gives an option, and counts before the file. Passwords may be ${env:NAME} or ${file:/PATH}.

`firebird-cdc init` writes a first file, `firebird-cdc check` names each mistake with its line. Any
option of a Kafka producer can be set behind kafka.producer.
"""


def write_pages(folder: Path) -> list[Path]:
    """Write all pages into FOLDER; return their paths."""
    os.environ["COLUMNS"] = "100000"  # lines are broken by whoever shows the page
    folder.mkdir(parents=True, exist_ok=True)
    pages = {**_commands(), f"{FILE_PAGE}.5": _options()}
    paths = [folder / name for name in sorted(pages)]
    for path in paths:
        path.write_text(pages[path.name], "utf-8")
    return paths


def _commands() -> dict[str, str]:
    parser = build_parser()
    (commands,) = (each for each in parser._actions if isinstance(each, argparse._SubParsersAction))
    said = {each.dest: each.help or "" for each in commands._choices_actions}
    pages = {
        f"firebird-cdc-{name}.1": _page(command, said[name], "firebird-cdc")
        for name, command in commands.choices.items()
    }
    names = [*(f"firebird-cdc-{name}" for name in commands.choices)]
    commands.choices.clear()  # each has a page of its own
    pages["firebird-cdc.1"] = _page(parser, "capture the changes of Firebird databases", *names)
    return pages


def _page(parser: argparse.ArgumentParser, said: str, *others: str) -> str:
    page = Manpage(
        parser,
        {
            "project_name": "firebird-cdc",
            "version": __version__,
            "manual_title": _MANUAL,
            "description": said,
        },
    )
    page.prog = parser.prog.replace(" ", "-")
    also = [*(f"{name}(1)" for name in others), f"{FILE_PAGE}(5)"]
    page.add_section("see also", "=", _roff(", ".join(also)))
    return str(page)


def _options() -> str:
    lines = [
        f'.TH {_roff(FILE_PAGE.upper())} 5 "{get_reproducible_date()}" "{_SOURCE}" "{_MANUAL}"',
        ".SH NAME",
        _roff(f"{FILE_PAGE} - options of firebird-cdc"),
        ".SH DESCRIPTION",
        *_roff(_INTRODUCTION).replace("\n\n", "\n.PP\n").splitlines(),
    ]
    for group in Group:
        lines += _group(group)
    lines += [".SH SEE ALSO", _roff("firebird-cdc(1), firebird-cdc-init(1), firebird-cdc-check(1)")]
    return "\n".join(lines) + "\n"


def _group(group: Group) -> Iterator[str]:
    options = [each for each in OPTIONS if each.group is group and each.status is Status.BUILT]
    if options:
        yield f".SH {_roff(group.value.upper())}"
    for option in options:
        name, value, default, meaning = map(_plain, option_row(option))
        yield f".TP\n.B {_roff(name)}"
        yield _roff(
            f"{value}; {default}."
            if default in ("required", "unset")
            else f"{value}; default: {default}."
        )
        yield f".br\n{_roff(meaning)}"


def _plain(markdown: str) -> str:
    """Return what MARKDOWN says, without its signs for code and links."""
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", markdown).replace("`", "")


def _roff(text: str) -> str:
    """Return TEXT as groff is to show it."""
    escaped = text.replace("\\", r"\(rs").replace("-", r"\-").replace("'", r"\(aq")
    return re.sub(r"^\.", r"\\&.", escaped, flags=re.MULTILINE)


if __name__ == "__main__":
    for written in write_pages(Path(sys.argv[1])):
        print(written)
