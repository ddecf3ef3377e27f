"""``python -m firebird_cdc``: the same as the command ``firebird-cdc``."""

import sys

from firebird_cdc.cli import main

sys.exit(main())
