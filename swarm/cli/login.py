"""``swarm login``: keep a door and a key, after the door has taken them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from swarm.cli.base import Command
from swarm.door_address import door_address, key_line
from swarm.errors import ConfigurationError


@click.command(
    cls=Command,
    short_help="Keep a door and your key.",
    examples=[
        ("asks for the key", "swarm login https://root.example"),
        (
            "a root of one's own, on this machine",
            "swarm login http://127.0.0.1:8765 --key-file ~/.local/share/task-swarm/root/operator.key",
        ),
        ("from a secret store", "pass swarm | swarm login https://root.example --key-file -"),
    ],
)
@click.argument("url")
@click.option("--key-file", metavar="FILE", help="Read the key from FILE, `-` for stdin, instead of asking.")
def login(url: str, key_file: str | None) -> None:
    """Keep the door at URL and your key, for all other commands."""
    from swarm.cli.profile import Profile, is_plain, write_profile
    from swarm.client import Client

    url = door_address(url)
    key = _read_key(key_file, url)
    with Client(url, key) as client:
        next(client.tasks(), None)  # the door knows the key, or refuses it
    path = write_profile(os.environ, Profile(url=url, key=key))
    if is_plain(url):
        click.echo("warning: the key travels unencrypted; use https beyond this machine", err=True)
    click.echo(f"logged in to {url}; kept in {path}")


def _read_key(key_file: str | None, url: str) -> str:
    if key_file == "-":
        key = sys.stdin.readline()
    elif key_file is not None:
        key = Path(key_file).read_text(errors="replace")
    elif from_environment := os.environ.get("SWARM_KEY"):
        _check_environment(url)
        key = from_environment
    elif sys.stdin.isatty():
        key = click.prompt("key", hide_input=True, err=True)
    else:
        raise ConfigurationError("no key is given, and there is no terminal to ask at", hint="--key-file - reads stdin")
    return key_line(key)


def _check_environment(url: str) -> None:
    """Refuse the environment's key where it is said to be for another door."""
    from swarm.content.urls import is_same

    its_door = os.environ.get("SWARM_URL")
    if its_door and not is_same(its_door, url):
        raise ConfigurationError(
            f"SWARM_KEY is for SWARM_URL, {its_door}, not for {url}; nothing was sent",
            hint="give the key for this door by --key-file, or leave SWARM_URL out",
        )
