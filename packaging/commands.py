"""The commands ``install``, ``uninstall`` and ``check``."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from firebird_cdc.config.locate import CONFIG_VARIABLE
from firebird_cdc.errors import FirebirdCdcError, SetupError, refused, user_name
from firebird_cdc.packaging.arguments import (
    LOGIN_HELP,
    add_dry_run_option,
    add_server_option,
)
from firebird_cdc.packaging.upgrading import after_switch, alone, carry_out

if TYPE_CHECKING:
    from firebird_cdc.packaging.server.layout import Server


class Unchecked(SetupError):
    """Nothing could be checked, which counts like an error that was found."""

    exit_code = 2


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands."""
    install = subparsers.add_parser(
        "install",
        help="put the plugin into a Firebird or RED Database server",
        description=(
            "Puts the plugin into a Firebird 4/5 or RED Database server and sets plugins.conf and "
            "replication.conf up, keeping what stands there. May be run again, after an upgrade "
            "too. Changes everything or nothing."
        ),
    )
    add_server_option(install)
    install.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help=f"connector options to use (default: ${CONFIG_VARIABLE}, else those that plugins.conf "
        "names, else a sample)",
    )
    install.add_argument(
        "--logging", type=Path, metavar="FILE", help="logging options to use (else: a sample)"
    )
    install.add_argument(
        "--database",
        type=Path,
        action="append",
        default=[],
        metavar="PATH",
        help="capture this database alone, by its full path; repeatable (else: those that "
        "replication.conf names for the plugin, else all)",
    )
    install.add_argument(
        "--replace", action="store_true", help="take the place of another replication plugin"
    )
    install.add_argument(
        "--inactive",
        action="store_true",
        help="write what replication.conf needs as a comment: nothing is captured until install "
        "runs without this option, or the comment signs are taken away",
    )
    add_dry_run_option(install)
    install.set_defaults(run=_install)

    uninstall = subparsers.add_parser(
        "uninstall",
        help="take the plugin out of a server",
        description=(
            "Takes out what install put in and gives back the lines that it replaced. Journals, "
            "edited files and everything else stay, unless you say --purge."
        ),
    )
    add_server_option(uninstall)
    uninstall.add_argument(
        "--all", action="store_true", help="of each server of this machine that has the plugin"
    )
    uninstall.add_argument(
        "--purge",
        action="store_true",
        help="remove logs, edited files and the journal folder too; one with anything that is not "
        "delivered, in the quarantine or marked as a gap stays, with its options, and is named",
    )
    uninstall.add_argument(
        "--left",
        type=Path,
        metavar="FILE",
        help="list there what stays and may go once nothing of firebird-cdc runs any more: nothing "
        "that tells of what is not delivered",
    )
    add_dry_run_option(uninstall)
    uninstall.set_defaults(run=_uninstall)

    check = subparsers.add_parser(
        "check",
        help="diagnose an installation",
        description=(
            "Looks for what would keep changes from being captured or delivered. Each finding "
            "names the file or option and what to do. Exit code 2: an error, 1: no more than "
            "warnings, 0: nothing, or notes, which ask for nothing."
        ),
    )
    add_server_option(check)
    check.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help=f"connector options to look at (default: ${CONFIG_VARIABLE}, else those that "
        "plugins.conf names)",
    )
    check.add_argument(
        "--database",
        action="append",
        default=[],
        metavar="PATH",
        help=(
            "also look at the publication of this database, PATH or HOST[/PORT]:PATH; repeatable. "
            + LOGIN_HELP
        ),
    )
    check.add_argument(
        "--strict", action="store_true", help="exit code 2 for warnings, too; notes stay notes"
    )
    check.set_defaults(run=_check)


def _install(arguments: argparse.Namespace) -> int:
    from firebird_cdc.packaging.install import plan_install
    from firebird_cdc.packaging.server.locating import config_in_environment, locate_server
    from firebird_cdc.tree import running_tree

    server = locate_server(arguments.server)
    _need_rights(server, "install")
    config = arguments.config or config_in_environment(server.root)
    given = (config, arguments.logging, arguments.database, arguments.replace)
    is_active = not arguments.inactive
    tree = running_tree()
    with alone(tree):
        previous = tree.version_in_use() if tree else None
        plan = plan_install(server, *given, is_active)
        idle = f"Nothing to do: {server.root} has this version already."
        carry_out(plan, arguments.dry_run, idle)
        if tree and not arguments.dry_run:
            after_switch(tree, previous, [server])
    if plan.steps and not arguments.dry_run:
        print(
            "Next: restart the server, and for each database to capture run\n"
            f"  firebird-cdc enable{_as_given(arguments)} DATABASE\n"
            f"Then see whether all is well: firebird-cdc check{_as_given(arguments)}"
        )
    return 0


def _uninstall(arguments: argparse.Namespace) -> int:
    from firebird_cdc.packaging.install import plan_uninstall
    from firebird_cdc.packaging.leaving import left_behind, write_left
    from firebird_cdc.packaging.server.locating import find_servers, locate_server

    if arguments.all:
        servers = [each for each in find_servers() if os.path.lexists(each.plugin_file)]
    else:
        servers = [locate_server(arguments.server)]
    left: list[str] = []
    for server in servers:
        _need_rights(server, "uninstall")
        plan = plan_uninstall(server, arguments.purge)
        left += left_behind(server, plan)
        idle = f"Nothing to do: {server.root} has nothing of firebird-cdc."
        carry_out(plan, arguments.dry_run, idle)
        if plan.steps and not arguments.dry_run:
            print("Restart the server: until then it goes on with what it has loaded.")
    if arguments.left is not None and not arguments.dry_run:
        write_left(arguments.left, left)
    return 0


def _as_given(arguments: argparse.Namespace) -> str:
    return "" if arguments.server is None else f" --server {arguments.server}"


def _need_rights(server: Server, command: str) -> None:
    """Refuse to begin as a user who could not go through with it. Raises SetupError."""
    for folder in (server.plugins, server.conf_directory):
        if not os.access(folder, os.W_OK | os.X_OK):
            raise SetupError(
                f"{folder} is not for {user_name()} to write: run it as root (sudo firebird-cdc"
                f" {command})"
            )


def _check(arguments: argparse.Namespace) -> int:
    try:
        return _checked(arguments)
    except PermissionError as error:
        raise Unchecked(refused(error)) from error
    except FirebirdCdcError as error:
        raise Unchecked(str(error)) from error


def _checked(arguments: argparse.Namespace) -> int:
    from firebird_cdc.packaging.check import check_server
    from firebird_cdc.packaging.server import findings as found
    from firebird_cdc.packaging.server.locating import config_in_environment, locate_server

    server = locate_server(arguments.server)
    if os.geteuid() not in (0, server.account.uid):
        raise SetupError(
            f"check looks at files with the eyes of {server.account.name}, whom the server runs as,"
            f" and {user_name()} can't: run it as root (sudo firebird-cdc check)"
        )
    config = arguments.config or config_in_environment(server.root)
    findings = check_server(server, config, arguments.database)
    for finding in found.gravest_first(findings):
        print(finding)
    code = found.exit_code(findings, arguments.strict)
    said = found.counted(findings)
    conclusion = [] if code else ["nothing is wrong"]
    print(f"{server.root}: {'; '.join([*conclusion, *([said] if said else [])])}")
    return code
