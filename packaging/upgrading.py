"""The commands ``upgrade`` and ``prune``: versions beside each other (`firebird_cdc.tree`)."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from firebird_cdc.errors import SetupError
from firebird_cdc.packaging.arguments import add_dry_run_option, add_server_option

if TYPE_CHECKING:
    from firebird_cdc.packaging.install import Plan
    from firebird_cdc.packaging.server.layout import Server
    from firebird_cdc.tree import Tree


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add both commands."""
    upgrade = subparsers.add_parser(
        "upgrade",
        help="put this version to use in place of the one before",
        description=(
            "Puts this version to use, of those that packages or the bundle have placed beside "
            "each other, for all servers that have the plugin. One that runs goes on with the "
            "version that it has loaded, until you restart it. An older version is put to use "
            "again by its own upgrade, unless something waits that it can't read. Removes versions "
            "that no process uses any more."
        ),
    )
    add_server_option(upgrade)
    add_dry_run_option(upgrade)
    upgrade.add_argument(
        "--may-go-back-to",
        nargs=3,
        metavar=("VERSION", "JOURNALS", "FOLDERS"),
        help="change nothing, and refuse if something waits that VERSION could not read, which "
        "knows formats of journals and of journal folders up to these numbers: an older package "
        "asks so before it is unpacked",
    )
    upgrade.set_defaults(run=_upgrade)
    prune = subparsers.add_parser(
        "prune",
        help="remove versions that no process uses any more",
        description=(
            "Removes the versions beside the one in use which no process has mapped; install and "
            "upgrade do the same."
        ),
    )
    prune.set_defaults(run=_prune)


def _upgrade(arguments: argparse.Namespace) -> int:
    from firebird_cdc.packaging.install import Plan, plan_install, plan_switch
    from firebird_cdc.packaging.server.locating import find_servers, locate_server

    tree = _needed_tree("upgrade")
    if arguments.may_go_back_to:
        return _may_go_back(tree, *arguments.may_go_back_to)
    with alone(tree):
        previous = tree.version_in_use()
        plan = Plan()
        plan_switch(tree, plan)
        given = arguments.server
        found = find_servers() if given is None else [locate_server(given)]
        servers = [server for server in found if os.path.lexists(server.plugin_file)]
        for server in servers:
            each = plan_install(server)
            plan.steps += [step for step in each.steps if step not in plan.steps]
            plan.notes += [f"{server.root}: {note}" for note in each.notes]
        carry_out(plan, arguments.dry_run, f"Nothing to do: {tree.version} is in use.")
        if not arguments.dry_run:
            after_switch(tree, previous, servers)
    return 0


def _may_go_back(tree: Tree, version: str, journals: str, folders: str) -> int:
    from firebird_cdc.packaging.versions import Readable, refuse_unreadable

    if not (journals.isdecimal() and folders.isdecimal()):
        raise SetupError(
            f"--may-go-back-to: {journals} and {folders} have to be numbers of formats"
        )
    refuse_unreadable(Readable(version, int(journals), int(folders)), tree.version)
    return 0


def _prune(_: argparse.Namespace) -> int:
    from firebird_cdc.packaging.versions import prune

    tree = _needed_tree("prune")
    with alone(tree):
        said = prune(tree)
    print("\n".join(said) or f"Nothing to do: {tree.prefix} has no version that is not in use.")
    return 0


def _needed_tree(command: str) -> Tree:
    import firebird_cdc
    from firebird_cdc.tree import running_tree

    tree = running_tree()
    if tree is None:
        raise SetupError(
            f"{command} is for versions that a package or the bundle has placed, and "
            f"{firebird_cdc.__path__[0]} is none: replace it the way it came (pip), and run: "
            "firebird-cdc install"
        )
    return tree


@contextlib.contextmanager
def alone(tree: Tree | None) -> Iterator[None]:
    """Change what is in use under the prefix of TREE one at a time. Raises SetupError."""
    if tree is None:
        yield
        return
    try:
        lock = os.open(tree.folder.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise SetupError(f"{tree.folder.parent} can't be opened: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def after_switch(tree: Tree, previous: str | None, servers: Sequence[Server]) -> None:
    """Say which of SERVERS run with the version that was in use before, and remove older ones."""
    from firebird_cdc.packaging.server.running import engine_processes
    from firebird_cdc.packaging.versions import prune

    if previous not in (None, tree.version):
        for server in servers:
            if any(process.has_plugin for process in engine_processes(server, [])):
                print(
                    f"restart the server in {server.root} to use {tree.version}: until then it"
                    f" goes on with {previous}"
                )
    for line in prune(tree, keep=previous):
        print(line)


def carry_out(plan: Plan, dry_run: bool, idle: str) -> None:
    """Do what PLAN says and tell of it; or tell only. Raises SetupError."""
    from firebird_cdc.packaging.install import Write

    if not plan.steps:
        print(idle)
    for step in plan.steps:
        if dry_run:
            print(f"would {step.describe()}")
            if isinstance(step, Write):
                print(step.diff(), end="")
    if not dry_run:
        lines = [step.describe() for step in plan.steps]
        plan.carry_out()
        for line in lines:
            print(line)
    for note in plan.notes:
        print(f"note: {note}")
