"""``firebird-cdc ARGUMENTS...`` with a Kafka client that is never done with its end."""

from __future__ import annotations

import sys
import time

from firebird_cdc.cli import main
from firebird_cdc.journal.shipper import ending
from firebird_cdc.journal.shipper.kafka.client import KafkaLink


def _hold(_: KafkaLink) -> None:
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    KafkaLink.close = _hold  # type: ignore[method-assign]
    ending._LOG_S = 30.0  # on a disk that is busy with others, the last line has time, too
    sys.exit(main(sys.argv[1:]))
