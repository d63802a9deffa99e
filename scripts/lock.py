"""Write the lock files, or say whether they are stale.  Usage: python scripts/lock.py [--check | --upgrade]

A lock pins every dependency with its hashes and names no host. Its first line holds a digest of what pyproject.toml
asks for, so that ``--check`` needs no network: a lock is stale when somebody changed the one and not the other.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROJECT = ROOT / "pyproject.toml"

#: Lock → what uv is told to resolve. ``worker`` is the base: a worker and the client. All pin what ``dev`` pins.
LOCKS = {
    "dev": [PROJECT.name, "--all-extras"],
    "demo": [PROJECT.name, "--extra", "root", "--extra", "demo", "--constraint", "locks/dev.txt"],
    "root": [PROJECT.name, "--extra", "root", "--constraint", "locks/dev.txt"],
    "worker": [PROJECT.name, "--constraint", "locks/dev.txt"],
    "build": ["--group", f"{PROJECT.name}:build"],
    "slither": ["--group", f"{PROJECT.name}:slither"],
}
#: The oldest Python that the locks must serve; newer ones get the same versions (``--universal``).
OLDEST_PYTHON = "3.11"


def wanted_digest() -> str:
    """A digest of every requirement in pyproject.toml, and of how locks are made."""
    project = tomllib.loads(PROJECT.read_text())
    asked = [
        project["project"]["requires-python"],
        sorted(project["project"]["dependencies"]),
        {extra: sorted(names) for extra, names in project["project"]["optional-dependencies"].items()},
        project["dependency-groups"],
        LOCKS,
    ]
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()


def header(name: str) -> str:
    return f"# {name}: written by scripts/lock.py for pyproject.toml {wanted_digest()[:16]}\n"


def path_of(name: str) -> Path:
    return ROOT / "locks" / f"{name}.txt"


def stale_locks() -> list[str]:
    return [
        name for name in LOCKS if not path_of(name).exists() or not path_of(name).read_text().startswith(header(name))
    ]


def write_locks() -> None:
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin")
    if uv is None:
        sys.exit("error: uv isn't in this environment\n       ./scripts/setup dev puts it there")
    (ROOT / "locks").mkdir(exist_ok=True)
    for name, resolved in LOCKS.items():
        command = [uv, "pip", "compile", *resolved, "--universal", "--python-version", OLDEST_PYTHON, "--no-header"]
        command += ["--generate-hashes", "--no-emit-index-url", "--no-annotate", "--quiet", *sys.argv[1:]]
        # The present file is the output file, so that only what must move moves; `--upgrade` moves all.
        command += ["--output-file", str(path_of(name))]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        path_of(name).write_text(header(name) + path_of(name).read_text())
        print(f"wrote {path_of(name).relative_to(ROOT)}")


def main() -> None:
    if sys.argv[1:] != ["--check"]:
        write_locks()
    elif stale := stale_locks():
        sys.exit(
            f"error: pyproject.toml asks for more than locks/ holds: {', '.join(stale)}\n       python scripts/lock.py"
        )


if __name__ == "__main__":
    main()
