"""The door that one logged in to, and the key: a file of one's own, or the environment.

``SWARM_URL`` and ``SWARM_KEY`` win over the file, ``SWARM_PROFILE`` says where the file is. A key and a door belong
together: neither the file's key nor the environment's goes to the other's door. The file can be read by its owner
alone; the key is in no ``repr``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import attrs
import orjson

from swarm.content.urls import is_same, is_this_machine
from swarm.door_address import door_address, key_line
from swarm.errors import ConfigurationError

__all__ = ["Profile", "is_plain", "profile_path", "read_profile", "write_profile"]

URL_VARIABLE: Final = "SWARM_URL"
KEY_VARIABLE: Final = "SWARM_KEY"
PATH_VARIABLE: Final = "SWARM_PROFILE"


@attrs.frozen(kw_only=True)
class Profile:
    """A door and a key to it."""

    url: str
    key: str = attrs.field(repr=False)


def profile_path(environment: Mapping[str, str]) -> Path:
    """Where the profile is kept."""
    if named := environment.get(PATH_VARIABLE):
        return Path(named).expanduser()
    base = environment.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "swarm" / "profile.json"


def read_profile(environment: Mapping[str, str]) -> Profile:
    """The profile in force.

    Raises:
        ConfigurationError: there is none, or it can't be read, or its key is for another door than the environment's,
            or its door isn't known to be that of the environment's key.
    """
    url, key = environment.get(URL_VARIABLE), environment.get(KEY_VARIABLE)
    if not (url and key):
        path = profile_path(environment)
        try:
            file = orjson.loads(path.read_bytes())
            kept = Profile(url=str(file["url"]), key=str(file["key"]))
        except FileNotFoundError:
            missing = URL_VARIABLE if not url else KEY_VARIABLE
            raise ConfigurationError(
                f"not logged in: there is no {path}, and {missing} isn't set",
                hint="swarm login URL keeps a door and a key; the operator gives both",
            ) from None
        except (orjson.JSONDecodeError, KeyError, TypeError, OSError) as fault:
            raise ConfigurationError(
                f"{path} isn't a profile: {fault}", hint="swarm login URL writes it anew"
            ) from fault
        if not key and url and not is_same(door_address(url), kept.url):
            raise ConfigurationError(
                f"{KEY_VARIABLE} isn't set: the key in {path} is for {kept.url}, not for {url}; nothing was sent",
                hint=f"set {KEY_VARIABLE} as well, or leave {URL_VARIABLE} out",
            )
        if key and not url and key != kept.key:
            raise ConfigurationError(
                f"{KEY_VARIABLE} is set without {URL_VARIABLE}, and isn't the key in {path} for {kept.url}; "
                "nothing was sent",
                hint=f"set {URL_VARIABLE} as well, or leave {KEY_VARIABLE} out",
            )
        url, key = url or kept.url, key or kept.key
    return Profile(url=door_address(url), key=key_line(key))


def write_profile(environment: Mapping[str, str], profile: Profile) -> Path:
    """Keep a profile, readable by its owner alone; the old one stays until the new one is whole."""
    path = profile_path(environment)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part")
    with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(orjson.dumps({"url": profile.url, "key": profile.key}, option=orjson.OPT_INDENT_2))
    unfinished.replace(path)
    return path


def is_plain(url: str) -> bool:
    """Whether the key would travel unencrypted beyond this machine."""
    parts = urlsplit(url)
    return parts.scheme == "http" and not is_this_machine(parts.hostname or "")
