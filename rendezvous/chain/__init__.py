"""The root's money: what the ledger wants to be true on the chain, made true once. Only ``root`` imports this room."""
