"""What every member of the swarm shares, and the worker.

``swarm`` is trio throughout; the root lives in ``rendezvous`` and is asyncio. Nothing here imports ``rendezvous``.
"""

__version__ = "0.1.0"
