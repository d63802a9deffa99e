"""A door's address and a key, as people give them."""

from __future__ import annotations

import pytest

from swarm.content.urls import is_same
from swarm.door_address import door_address, key_line
from swarm.errors import ConfigurationError


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("https://Root.Example/", "https://root.example"),
        ("https://root.example:443", "https://root.example"),
        ("http://127.0.0.1:8765", "http://127.0.0.1:8765"),
        ("\thttp://[::1]:8765/\n", "http://[::1]:8765"),
        ("https://root.example/swarm/?x=1", "https://root.example/swarm"),
    ],
)
def test_an_address_has_one_form(given: str, address: str) -> None:
    assert door_address(given) == address
    assert door_address(address) == address


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("http://[::1", "Invalid IPv6 URL"),
        ("http://a..b", "isn't a host name"),
        ("http://.", "isn't a host name"),
        ("http://x:y", "port"),
        ("http://root.example\\x.evil.test/..", "a backslash"),
        ("http://127.0.0.1:1\\@127.0.0.1:2/..", "a backslash"),
        ("https://user@root.example", "a user or password"),
        ("http://root.exam\nple", "control character"),
        ("root.example", "isn't the address of a door"),
        ("https://root.example/join#inv.key", "a join link"),
    ],
)
def test_what_clients_would_read_in_several_ways_is_refused(given: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        door_address(given)


def test_a_backslash_makes_no_address_the_same_as_another() -> None:
    assert not is_same("http://root.example\\x.evil.test/..", "http://root.example")


@pytest.mark.parametrize("text", ["", "two lines\nof it", "with space", "ключ", "nul\0"])
def test_what_is_no_key_is_never_sent(text: str) -> None:
    with pytest.raises(ConfigurationError, match="isn't a key"):
        key_line(text)
    assert key_line(" sok_abc\n") == "sok_abc"
