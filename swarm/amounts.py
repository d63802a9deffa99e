"""Amounts of money as people write and read them: ``0.001eth``, ``20gwei``, ``5000wei``. Whole wei inside.

No amount is ever a float, and a number without a unit is refused: nobody should pay a billion times what they meant.
"""

from __future__ import annotations

import re
from typing import Final

from swarm.errors import ConfigurationError
from swarm.model import Wei

__all__ = ["UNITS", "parse_wei", "show_wei"]

#: Unit → how many decimal places it is above a wei.
UNITS: Final = {"wei": 0, "gwei": 9, "eth": 18}
_AMOUNT: Final = re.compile(r"([0-9]{1,30})(?:\.([0-9]{1,18}))?\s*([a-z]*)", re.IGNORECASE | re.ASCII)


def parse_wei(text: str) -> Wei:
    """Read an amount.

    Raises:
        ConfigurationError: it isn't one, has no unit, or names parts of a wei.
    """
    found = _AMOUNT.fullmatch(text.strip())
    if found is None:
        raise ConfigurationError(f"{text!r} isn't an amount", hint="such as 0.001eth, 20gwei or 5000wei")
    whole, fraction, unit = found[1], found[2] or "", found[3].lower()
    if unit not in UNITS:
        if not unit and not (whole + fraction).strip("0"):
            return 0
        said = f"has the unit {found[3]}" if unit else "has no unit"
        raise ConfigurationError(f"the amount {text} {said}", hint=f"units are {', '.join(UNITS)}: such as {whole}gwei")
    places = UNITS[unit]
    if len(fraction.rstrip("0")) > places:
        raise ConfigurationError(f"{text} has parts of a wei", hint="a wei is the least there is")
    return int(whole + fraction[:places].ljust(places, "0"))


def show_wei(wei: Wei) -> str:
    """An amount in the unit that reads best; ``parse_wei`` of it is the same amount."""
    unit = "eth" if wei >= 10**14 else "gwei" if wei >= 10**6 else "wei"
    whole, fraction = divmod(wei, 10 ** UNITS[unit])
    places = str(fraction).rjust(UNITS[unit], "0").rstrip("0") if fraction else ""
    return f"{whole}{'.' if places else ''}{places}{unit}"
