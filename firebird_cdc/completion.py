"""The command ``completion``: what a shell needs to complete our commands, made by shtab from the
same parsers as ``--help``."""

from __future__ import annotations

import argparse

SHELLS = ("bash", "zsh", "fish")

_FILES = {"FILE", "PATH", "DATABASE", "FILE|UUID", "FILE.zip", "FILE.tar.gz"}
_FOLDERS = {"DIR", "ROOT"}


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "completion",
        help="print a script by which a shell completes our commands",
        description=(
            "Prints the script to standard output. bash: write it to"
            " /etc/bash_completion.d/firebird-cdc, or source it; zsh: to a file _firebird-cdc in a"
            " folder of $fpath; fish: to ~/.config/fish/completions/firebird-cdc.fish."
        ),
    )
    parser.add_argument("shell", choices=SHELLS)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    import shtab

    from firebird_cdc.cli import build_parser

    program = build_parser()
    _name_paths(program)
    print(shtab.complete(program, arguments.shell))
    return 0


def _name_paths(parser: argparse.ArgumentParser) -> None:
    """Have paths completed where PARSER, or one of its commands, takes them."""
    import shtab

    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                _name_paths(command)
        elif action.metavar in _FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif action.metavar in _FOLDERS:
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
