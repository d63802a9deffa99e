"""Programs that end with the test run that started them, however it ends: a run that is killed leaves none behind.

The kernel does it (``PR_SET_PDEATHSIG``): util-linux' ``setpriv`` asks for it and then becomes the program, so that the
program has the pid that its starter sees.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path


def tied(argv: Sequence[str | Path], *, sent: signal.Signals = signal.SIGKILL) -> list[str]:
    """The command line that runs a program for as long as the thread that starts it lives.

    Args:
        argv: the program and its arguments.
        sent: the signal that it gets then: one that ends it, and whatever it has started itself.

    Raises:
        RuntimeError: this isn't the main thread, so the program would end with a thread and not with the run.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("the kernel ties a program to the thread that starts it: start it from the main thread")
    return ["setpriv", "--pdeathsig", sent.name, "--", *map(str, argv)]


def directory_of_this_run(name: str) -> Path:
    """A fresh directory below the system's, for what pytest's own can't hold; those of killed runs are removed.

    Args:
        name: what its name begins with; the pid of this run follows.
    """
    directory = Path(tempfile.mkdtemp(prefix=f"{name}-{os.getpid()}-"))
    for other in directory.parent.glob(f"{name}-*-*"):
        left_by = re.fullmatch(rf"{re.escape(name)}-(\d+)-\w+", other.name)
        if left_by and not run_lives(int(left_by[1])):
            shutil.rmtree(other, ignore_errors=True)
    return directory


def run_lives(pid: int) -> bool:
    """Whether the run with this pid still goes on, as far as we can see."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # somebody else's
    return True
