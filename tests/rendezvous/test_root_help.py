"""``swarm-root`` explains itself: all is in a section of the help, every command shows what to type, errors hint."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from rendezvous.cli import cli, run
from rendezvous.command import VARIABLES
from rendezvous.help import COMMAND_SECTIONS, OPTION_SECTIONS
from rendezvous.settings import RootSettings
from swarm.settings import declared

#: What ends the list of options of every program, below the sections.
LAST = {"ready_file", "log_level"}
COLUMNS = 80


def leaves(group: click.Group, *path: str) -> Iterator[tuple[str, ...]]:
    """The words of every command that does something."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from leaves(command, *path, name)
        else:
            yield *path, name


@pytest.mark.parametrize("words", list(leaves(cli)), ids=" ".join)
def test_every_command_of_the_root_shows_an_example(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*words, "--help"]) == 0

    example = capsys.readouterr().out.split("Examples:")[1]
    assert re.search(rf"swarm-root {words[0]}( .*)?{' '.join(words[1:])}", example)


def test_the_help_has_each_command_in_one_section_and_cuts_no_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    shown = capsys.readouterr().out

    named = [name for section in COMMAND_SECTIONS.values() for name in section]
    assert sorted(named) == sorted(cli.commands)
    assert not [line for line in shown.splitlines()[1:] if "..." in line]
    assert all(len(line) <= COLUMNS for line in shown.splitlines())
    assert [line for line in shown.splitlines() if line.endswith(":") and not line.startswith(" ")] == [
        "Options:",
        *(f"{title}:" for title in COMMAND_SECTIONS),
    ]


def test_every_setting_of_a_root_is_in_one_section_of_the_help_of_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", "--help"]) == 0
    shown = capsys.readouterr().out

    settings = [one for one in declared(RootSettings, prefix=VARIABLES) if not one.hidden]
    named = [name for section in OPTION_SECTIONS.values() for name in section]
    assert sorted(named) == sorted({one.field for one in settings} - LAST)
    assert all(len(re.findall(rf"^  --{one.option} ", shown, re.MULTILINE)) == 1 for one in settings)
    assert all(f"\n{title}:\n" in shown for title in OPTION_SECTIONS)


def test_a_further_root_that_is_given_no_swarm_is_told_which_files_to_copy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["init", "--data", str(tmp_path / "two"), "--swarm-of", str(tmp_path)]) == 2

    told = capsys.readouterr().err
    assert f"there is no swarm.key in {tmp_path}" in told
    assert "copies of its swarm.key and swarm.json" in told
    assert not (tmp_path / "two").exists()


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("invite --use 5", "swarm-root invite has no option --use; did you mean --uses?"),
        ("run --legder x", "swarm-root run has no option --legder; did you mean --ledger?"),
        ("keys add requester alice --allowence 1eth", "has no option --allowence; did you mean --allowance?"),
        ("channel list --rpc http://127.0.0.1:8545", "swarm-root channel list has no option --rpc\n"),
        ("approve-version worker 1 --key-fle x", "has no option --key-fle; did you mean --key-file?"),
        ("migrate backup copy --ledger x", "as in swarm-root migrate --ledger … backup\n"),
        ("run --version", "it goes before run, as in swarm-root --version … run\n"),
    ],
)
def test_an_unknown_option_names_only_what_the_command_itself_or_one_before_it_has(
    line: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(line.split()) == 2

    assert says in capsys.readouterr().err


@pytest.mark.parametrize("line", ["", "keys", "queue"])
def test_without_a_command_the_help_is_shown_and_no_error(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(line.split()) == 2

    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"Usage: swarm-root {line}".rstrip())
