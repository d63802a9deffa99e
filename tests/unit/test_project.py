"""What every change keeps true of the project itself: locks, news fragments, scripts."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCKS = sorted((ROOT / "locks").glob("*.txt"))
FRAGMENTS = sorted(path for path in (ROOT / "newsfragments").iterdir() if not path.name.startswith("."))


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.stem)
def test_a_lock_pins_everything_by_hash_and_names_no_host(lock: Path) -> None:
    text = lock.read_text()
    pins = re.split(r"^(?=\S)", text, flags=re.MULTILINE)

    assert "://" not in text
    assert not re.search(r"^(-|/|\.)", text, flags=re.MULTILINE)
    for pin in pins:
        assert not pin or pin.startswith("#") or ("==" in pin and "--hash=sha256:" in pin), pin


def test_worker_and_root_get_the_versions_that_are_tested() -> None:
    pins = {lock.stem: dict(re.findall(r"^(\S+)==(\S+)", lock.read_text(), flags=re.MULTILINE)) for lock in LOCKS}

    assert pins["worker"].items() <= pins["root"].items() <= pins["dev"].items()


@pytest.mark.parametrize("fragment", FRAGMENTS, ids=lambda path: path.name)
def test_a_news_fragment_is_a_sentence_of_a_known_type(fragment: Path) -> None:
    assert re.fullmatch(r"[a-z0-9-]+\.(added|changed|fixed)\.md", fragment.name)
    assert fragment.read_text().strip().endswith(".")


def test_the_commands_of_the_readme_can_be_run() -> None:
    commands = re.findall(r"^    (\./scripts/\w+)", (ROOT / "README.md").read_text(), flags=re.MULTILINE)

    assert {"./scripts/demo", "./scripts/test"} <= set(commands)
    for command in [*commands, ".ci/run", "scripts/setup", "scripts/kubo/build"]:
        assert os.access(ROOT / command, os.X_OK), command


def test_links_between_documents_lead_somewhere() -> None:
    for document in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\((?!\w+:)([^)#]+)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.relative_to(ROOT)} names {target}"
