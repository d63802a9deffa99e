"""Pure rules: may this worker have this task now, for how long, and what follows a failure. Grant or Refusal.

Nothing here knows SQL, HTTP or a clock: ``now`` and ``rng`` come in as arguments.
"""
