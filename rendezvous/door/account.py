"""``GET /v1/account``: what a requester may spend, and what the chain asks for now; ``swarm quote`` reads it."""

from __future__ import annotations

from rendezvous.door.call import Call
from rendezvous.door.resources import Door
from swarm.model import Role
from swarm.wire import AccountView

__all__ = ["account"]


async def account(door: Door, call: Call) -> AccountView:
    """The caller's allowance, and the chain's price."""
    who, ethereum = call.who, door.site.charter.ethereum
    if ethereum is None:
        return AccountView(owner=who.owner, role=who.role.value)
    base_fee_wei = await door.base_fee_wei()
    shown = AccountView(
        owner=who.owner,
        role=who.role.value,
        ethereum=ethereum,
        base_fee_wei=None if base_fee_wei is None else str(base_fee_wei),
    )
    if who.role is Role.OPERATOR:
        return shown
    allowance = await door.ledger.read(lambda reader: reader.allowance(who.owner))
    return AccountView(
        owner=shown.owner,
        role=shown.role,
        ethereum=ethereum,
        base_fee_wei=shown.base_fee_wei,
        allowance_wei=str(allowance.granted_wei),
        spent_wei=str(allowance.spent_wei),
    )
