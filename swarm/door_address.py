"""What people name a door by: its address, and a key to it. All commands take and refuse the same."""

from __future__ import annotations

from urllib.parse import urlsplit

from swarm.content.urls import canonical, with_scheme
from swarm.errors import ConfigurationError, MalformedInput

__all__ = ["door_address", "key_line"]


def door_address(text: str) -> str:
    """A door's address in its canonical form: http or https, a host and maybe a path, no slash at the end.

    What is compared with another address, and what is connected to, is then the same for everybody: clients read a
    backslash or a user's name in an address in different ways.

    Raises:
        ConfigurationError: it isn't one.
    """
    try:
        parts = urlsplit(text.strip())
        if parts.fragment:
            raise ConfigurationError(
                "this is a join link: it is for workers",
                hint=f"swarm-worker takes it; here it is {parts.scheme}://{parts.netloc}",
            )
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ConfigurationError(f"{text} isn't the address of a door", hint=f"did you mean {with_scheme(text)}?")
        if "\\" in text:
            raise MalformedInput("a URL with a backslash in it")
        parts = urlsplit(canonical(text))
    except (MalformedInput, ValueError) as fault:
        raise ConfigurationError(f"{text!r} isn't the address of a door: {fault}") from fault
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"


def key_line(text: str) -> str:
    """A key as it is sent.

    Raises:
        ConfigurationError: it isn't one.
    """
    key = text.strip()
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigurationError("this isn't a key", hint="a key is one line of letters and digits, from the operator")
    return key
