"""What a transaction offers for its inclusion (EIP-1559), within the operator's cap. Pure.

The first offer bears one doubling of the base fee. A stuck one is raised by 12.5 % at a time: nodes take a replacement
from 10 % on (measured: 1.0999 times is refused, 1.1 times taken).
"""

from __future__ import annotations

from typing import Final

import attrs

from swarm.model import Wei

__all__ = ["Fees", "first_fees", "raised"]

#: The base fee may double (six full blocks) before the offer is too low.
HEADROOM: Final = 2
#: +12.5 %, rounded up.
RAISE_EIGHTHS: Final = 9
_EIGHTHS: Final = 8
#: What nodes ask of a replacement at least, in percent of the old.
LEAST_RAISE_PERCENT: Final = 110


@attrs.frozen(kw_only=True)
class Fees:
    """The most that is paid for a unit of gas, and the most of it for the block's maker; wei."""

    max_fee_wei: Wei
    tip_wei: Wei


def first_fees(*, base_fee_wei: Wei, tip_wei: Wei, cap_wei: Wei) -> Fees | None:
    """The first offer.

    Args:
        base_fee_wei: of the newest block.
        tip_wei: what the node suggests.
        cap_wei: the operator's: no offer is above it.

    Returns:
        None where the chain is too dear for the cap now.
    """
    if base_fee_wei + tip_wei > cap_wei:
        return None
    return Fees(max_fee_wei=min(cap_wei, HEADROOM * base_fee_wei + tip_wei), tip_wei=tip_wei)


def raised(last: Fees, *, base_fee_wei: Wei, tip_wei: Wei, cap_wei: Wei) -> Fees | None:
    """The next offer for the same nonce.

    Args:
        last: the offer before; both parts must rise.
        base_fee_wei: of the newest block.
        tip_wei: what the node suggests.
        cap_wei: the operator's.

    Returns:
        None where the cap leaves no offer that a node would take.
    """
    wanted = Fees(
        max_fee_wei=max(_up(last.max_fee_wei), HEADROOM * base_fee_wei + tip_wei),
        tip_wei=max(_up(last.tip_wei), tip_wei),
    )
    offer = Fees(max_fee_wei=min(cap_wei, wanted.max_fee_wei), tip_wei=min(cap_wei, wanted.tip_wei))
    least = (_least(last.max_fee_wei), _least(last.tip_wei))
    if offer.max_fee_wei < least[0] or offer.tip_wei < least[1] or offer.tip_wei > offer.max_fee_wei:
        return None
    return offer


def _up(wei: Wei) -> Wei:
    return -(-wei * RAISE_EIGHTHS // _EIGHTHS)


def _least(wei: Wei) -> Wei:
    return -(-wei * LEAST_RAISE_PERCENT // 100)
