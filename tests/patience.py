"""How long a test waits for what has to come."""

from __future__ import annotations

from typing import Final

#: A guard against waiting for ever and never a measure, so it is generous: several times what a loaded machine needs.
#: Where a time is what a test is about, the test names that time itself.
PATIENCE_S: Final = 180.0
