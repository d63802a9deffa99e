"""A copy of the contract and its tests that may be broken: artifacts of the project stay as they were built."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
COPIED = ["package.json", "hardhat.config.js", "contracts", "tests/contracts", "tests/vectors"]


class Workbench:
    """A copy in `directory`, with the project's own node_modules."""

    def __init__(self, directory: Path, node: str) -> None:
        self.directory = directory
        self.contract = directory / "contracts" / "TaskEscrow.sol"
        self.node = node

    def hardhat(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run Hardhat in the copy; what it says, errors too, is the result's stdout."""
        command = [self.node, "node_modules/hardhat/dist/src/cli.js", *arguments]
        return subprocess.run(
            command, cwd=self.directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )


@contextlib.contextmanager
def open_workbench() -> Iterator[Workbench]:
    setup = subprocess.run([ROOT / "scripts/contract/setup"], stdout=subprocess.PIPE, text=True, check=True)
    with tempfile.TemporaryDirectory(prefix="task-swarm-contract-") as name:
        directory = Path(name)
        for path in COPIED:
            copy = shutil.copytree if (ROOT / path).is_dir() else shutil.copy2
            copy(ROOT / path, directory / path)
        (directory / "node_modules").symlink_to(ROOT / "node_modules")
        yield Workbench(directory, setup.stdout.strip())
