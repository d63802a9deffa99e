"""The programs `swarm` and `swarm-worker`; lazily imported, so that their help is quick."""
