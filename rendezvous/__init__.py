"""The root: the door, the ledger, the pay desk. asyncio, but for the peer in its own trio thread."""
