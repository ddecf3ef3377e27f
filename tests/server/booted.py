"""A Debian 13 with systemd as its first process, in namespaces of its own, over the system that the
server tests have: what it changes lies in memory and goes with it."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from firebird_cdc.demo import trixie as debian
from firebird_cdc.demo.processes import await_condition

_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
_BOOT = f"""\
set -e
mount -t tmpfs tmpfs "$2"
mkdir "$2/upper" "$2/work" "$2/root"
root=$2/root
mount -t overlay overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work" "$root"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/run"
inside="chroot $root env -i PATH={_PATH} DEBIAN_FRONTEND=noninteractive"
$inside apt-get -qq update
$inside apt-get -qq --yes --no-install-recommends install systemd
mount --rbind /sys "$root/sys"
printf '[Unit]\\nDescription=Nothing by itself\\n' > "$root/etc/systemd/system/nothing.target"
exec $inside env container=other /lib/systemd/systemd --system --unit=nothing.target \\
    --log-target=console --show-status=no
"""


class Booted:
    """The running system, a context manager; FOLDER: an empty one, for what is mounted."""

    def __init__(self, system: debian.Trixie, folder: Path) -> None:
        self._argv = ["bash", "-c", _BOOT, "boot", str(system.path), str(folder)]
        self._log = folder.with_suffix(".log")
        self._outer: subprocess.Popen[bytes] | None = None
        self._first = 0  # systemd, as it is numbered outside

    def __enter__(self) -> Booted:
        enter = [
            "unshare",
            "--pid",
            "--mount",
            "--cgroup",
            "--ipc",
            "--uts",
            "--fork",
            "--kill-child",
        ]
        with self._log.open("wb") as log:
            self._outer = subprocess.Popen(
                [*enter, *self._argv], stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )

        def running() -> bool:
            assert self._outer is not None
            assert self._outer.poll() is None, self._log.read_text()[-2000:]
            number = self._outer.pid
            children = Path(f"/proc/{number}/task/{number}/children").read_text().split()
            self._first = int(children[0]) if children else 0
            name = Path(f"/proc/{self._first}/comm")
            return self._first > 0 and name.read_text() == "systemd\n" and self._answers()

        await_condition("systemd to run", running, 240)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._outer is not None
        os.kill(self._first, signal.SIGKILL)  # and with it all that is in its namespace
        self._outer.wait()

    def _answers(self) -> bool:
        return self.run("systemctl", "is-system-running", check=False).strip() == "running"

    def run(self, *argv: str, check: bool = True, text: str | None = None) -> str:
        """Run ARGV inside; return what it printed. TEXT: its standard input."""
        enter = ["nsenter", f"--target={self._first}", "--mount", "--pid", "--cgroup", "--uts"]
        done = subprocess.run(
            [*enter, "--ipc", "--root", "--wdns=/", "env", "-i", f"PATH={_PATH}", *argv],
            input=text,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert not check or done.returncode == 0, f"{argv}:\n{done.stdout}"
        return done.stdout
