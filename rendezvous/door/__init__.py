"""The door: the HTTP server that tells a newcomer where the swarm is, and keeps the ledger with everyone."""
