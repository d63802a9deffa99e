"""Run a script in the environment of scripts/setup, also where that isn't active."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: Says which Python was tried already, so that one without the packages isn't tried for ever.
ENTERED = "SWARM_SCRIPT_PYTHON"


def need(*packages: str) -> None:
    """Start the running script anew in the environment, or end it with a hint, where packages are missing here.

    Args:
        packages: what it imports, as the name of a module.
    """
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    if not missing:
        return
    environment = Path(os.path.normpath(ROOT / os.environ.get("SWARM_VENV", ".venv")))  # as scripts/setup reads it
    python = environment / "bin" / "python"
    if python.exists() and os.environ.get(ENTERED) != str(python):
        os.environ[ENTERED] = str(python)
        with contextlib.suppress(OSError):  # it is no program; what is missing is told below
            os.execv(python, [str(python), *sys.argv])  # noqa: S606 -- no shell is wanted
    sys.exit(f"error: {missing[0]} isn't installed\n       ./scripts/setup dev makes an environment that has all")
