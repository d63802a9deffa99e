"""The ledger: the truth about every task. One writer, group commit; readers beside it."""
