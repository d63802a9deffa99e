"""The worker, one file a step: hear, choose, turns, execute, upload, journal; joined in ``run``."""
