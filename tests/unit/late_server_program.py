"""``DIRECTORY``: an embedded shipper in a process of its own, as a server starts it; while it ends,
a server commits, is killed, and takes two seconds for its end."""

from __future__ import annotations

import fcntl
import os
import sys
import threading
import uuid
from pathlib import Path

from firebird_cdc.cli import main
from firebird_cdc.journal.shipper.delivery.plain import PlainDelivery

sys.path.append(str(Path(__file__).parent))  # which `make` keeps Python from doing
from played_server import PlayedServer

_DYING_S = 2.0  # longer than the shipper's time for Kafka

if __name__ == "__main__":
    directory = Path(sys.argv[1])
    server = PlayedServer(directory)
    server.create_database()
    abandon = PlainDelivery.abandon

    def abandon_later(delivery: PlainDelivery, patience_s: float) -> None:
        owner = uuid.uuid4()
        mark = os.open(server.folder.owners.mark(owner), os.O_RDWR | os.O_CREAT)
        fcntl.flock(mark, fcntl.LOCK_EX)
        threading.Timer(_DYING_S, os.close, (mark,)).start()
        print(server.commit_elsewhere(7, owner))
        abandon(delivery, patience_s)

    PlainDelivery.abandon = abandon_later  # type: ignore[method-assign]
    sys.exit(main(["ship", "--embedded", "--config", str(directory / "connector.yaml")]))
