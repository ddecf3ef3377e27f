"""An S3 server on loopback, in a process of its own: moto's."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "access-key-of-the-test",
    "AWS_SECRET_ACCESS_KEY": "secret-of-the-test",
    "AWS_EC2_METADATA_DISABLED": "true",
}
"""For the environment; the server takes any, and nothing that Spark shows may hold them."""


@contextmanager
def credentials() -> Iterator[None]:
    """Have them in the environment, of which Spark's workers get what its JVM began with."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        yield


_SERVE = """
import logging, sys
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
server.stop()
"""


@dataclass(frozen=True)
class ObjectStore:
    """A running server; ``port`` on loopback."""

    port: int

    def url(self, folder: str) -> str:
        """The URI of FOLDER, ``bucket/dir``, with all that pyarrow has to know."""
        query = f"region=us-east-1&scheme=http&endpoint_override=127.0.0.1:{self.port}"
        return f"s3://{folder}?{query}"

    def system(self) -> Any:
        """Pyarrow's file system of the server, for writing."""
        from pyarrow.fs import S3FileSystem

        return S3FileSystem(
            endpoint_override=f"127.0.0.1:{self.port}",
            scheme="http",
            region="us-east-1",
            allow_bucket_creation=True,
        )

    def upload(self, folder: Path, target: str) -> None:
        """Copy the files of FOLDER to TARGET, ``bucket/dir``."""
        system = self.system()
        system.create_dir(target)
        for path in folder.iterdir():
            with system.open_output_stream(f"{target}/{path.name}") as stream:
                stream.write(path.read_bytes())


@contextmanager
def running_store() -> Iterator[ObjectStore]:
    """Run a server for as long as the context lasts."""
    with subprocess.Popen(
        [sys.executable, "-c", _SERVE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            yield ObjectStore(int(server.stdout.readline()))
        finally:
            server.stdin.close()
            server.wait(timeout=30)
