"""``firebird-cdc`` that dies at a step of setting aside, of a retry or of a repair:
``POINT ARGUMENTS...``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "faults"))

import points

from firebird_cdc.cli import main

_QUARANTINE = "firebird_cdc.journal.shipper.quarantine"
_REDELIVERY = "firebird_cdc.journal.shipper.delivery.redelivery"


def _any(arguments: tuple[Any, ...]) -> bool:
    return bool(arguments)


STEPS = {
    "note": (_QUARANTINE, "Quarantine.flush", _any),
    "keep": (_QUARANTINE, "Quarantine.keep", _any),
    "finish": (_REDELIVERY, "Redelivery.finish", _any),
    "let_go": ("firebird_cdc.journal.shipper.delivery.retry", "Retries.let_go", _any),
    "remove": (_QUARANTINE, "Quarantine.remove", _any),
    "repaired": ("firebird_cdc.journal.shipper.delivery.repair", "Repairs.finish", _any),
    "remember": ("firebird_cdc.journal.shipper.repairs", "RepairFolder.note_sent", _any),
    "forget": ("firebird_cdc.journal.shipper.repairs", "RepairFolder.remove", _any),
    "record": ("firebird_cdc.journal.shipper.kafka.offset_topic", "redelivery_record", _any),
}

if __name__ == "__main__":
    points.CONFIRMING.update(STEPS)
    points.arm(sys.argv[1], 1)
    sys.exit(main(sys.argv[2:]))
