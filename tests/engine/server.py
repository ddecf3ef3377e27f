"""A server process without Python of its own (bare_server.c), and disks to spoil."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import instruments
import pytest
from capture import PATIENCE_S, Capture, SqlError

from firebird_cdc.demo.processes import has_input, tail

_SOURCE = Path(__file__).with_name("bare_server.c")


def compile_server(library: Path, program: Path) -> None:
    """Compile bare_server.c against the client library of an engine root."""
    argv = ["gcc", "-Wall", "-Wextra", "-Werror", "-O1", "-o", str(program), str(_SOURCE)]
    # What the client library needs itself is found at run time.
    subprocess.run(
        [*argv, str(library), "-Wl,--unresolved-symbols=ignore-in-shared-libs"], check=True
    )


class Server:
    """A process that has the engine and the plugin in itself, with one attachment."""

    def __init__(
        self,
        capture: Capture,
        program: Path,
        before: Sequence[str] = (),
        pass_fds: Sequence[int] = (),
    ) -> None:
        self._errors = capture.directory / "server.log"
        with self._errors.open("ab") as log:
            self.process = subprocess.Popen(
                [*instruments.before(capture.directory), *before, str(program)],
                env=capture.environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                pass_fds=pass_fds,
                start_new_session=True,
            )
        self.call(f"attach {capture.database}")

    @property
    def pid(self) -> int:
        return self.process.pid

    def call(self, command: str) -> str:
        """Return the answer. Raises SqlError; AssertionError if the server did not survive."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        assert has_input(self.process.stdout, PATIENCE_S), f"the server hangs: {tail(self._errors)}"
        line = self.process.stdout.readline()
        if not line:
            code = self.process.wait()
            raise AssertionError(f"the server died ({code}): {tail(self._errors)}")
        if line.startswith("error"):
            raise SqlError(line)
        return line

    def execute(self, sql: str) -> None:
        self.call(f"execute {sql}")

    def commit(self) -> None:
        self.call("commit")

    def write(self, number: int, rows: int = 1) -> None:
        """Insert rows into T and commit; roll back if that is refused, and raise SqlError."""
        try:
            self.execute(
                f"EXECUTE BLOCK AS DECLARE I INT = 0; BEGIN WHILE (I < {rows}) DO BEGIN"
                f" INSERT INTO T VALUES ({number}, LPAD('', 1000, 'x')); I = I + 1; END END"
            )
            self.commit()
        except SqlError:
            self.call("rollback")
            raise

    def read(self) -> None:
        """Read T in a transaction of its own."""
        self.execute("EXECUTE BLOCK AS DECLARE N INT; BEGIN SELECT COUNT(*) FROM T INTO :N; END")
        self.commit()

    def can_write(self, number: int, rows: int = 1) -> bool:
        try:
            self.write(number, rows)
        except SqlError:
            return False
        return True

    def end(self) -> None:
        """Have the server end, which it must do in peace."""
        self.process.communicate(timeout=PATIENCE_S)
        assert self.process.returncode == 0, tail(self._errors)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


class SmallDisk:
    """A file system of its own in memory, mounted at PATH."""

    def __init__(self, path: Path, mib: int) -> None:
        path.mkdir()
        self.path = path
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mib}m", "none", path], check=True)

    def resize(self, mib: int) -> None:
        options = f"remount,size={mib}m"
        subprocess.run(["mount", "-o", options, self.path], check=True)

    def fill(self, step: int) -> Path:
        """Leave no room for STEP bytes more; return the file that takes it."""
        filler = self.path / "filler"
        with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
            while True:
                file.write(bytes(step))
        return filler

    def unmount(self) -> None:
        subprocess.run(["umount", "--lazy", self.path], check=True)
