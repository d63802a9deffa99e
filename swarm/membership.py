"""What a data directory is to one swarm, kept between starts: its API key, and the settings that the root signed last.

Both are written whole or not at all, 0600. A file that is damaged is as good as none. This module asks no door.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import structlog

from swarm.door_address import key_line
from swarm.errors import ConfigurationError, MalformedInput, UntrustedSettings
from swarm.identity import write_private
from swarm.signing import MAX_SETTINGS_BYTES, verify_settings
from swarm.wire import Answer, Settings, decode, encode

__all__ = ["Membership", "keep_membership", "keep_settings", "read_membership", "read_settings"]

log = structlog.get_logger()

MEMBERSHIP_FILE: Final = "membership.json"
SETTINGS_FILE: Final = "settings.json"
MAX_MEMBERSHIP_BYTES: Final = 4_096


class Membership(Answer, frozen=True):
    """What this data directory is to one swarm.

    Attributes:
        key_id: the root's.
        network_id: the swarm's.
        api_key: ours.
        payout: who is paid; None: the worker itself.
        url: the door that gave the key; None in files of earlier versions.
    """

    key_id: str
    network_id: str
    api_key: str | None = None
    payout: str | None = None
    url: str | None = None


def read_membership(directory: Path) -> Membership | None:
    """The membership of this directory; None where it has none, or none that can be understood.

    Raises:
        ConfigurationError: the file can't be read.
    """
    path = directory / MEMBERSHIP_FILE
    try:
        kept = decode(path.read_bytes()[: MAX_MEMBERSHIP_BYTES + 1], Membership, max_bytes=MAX_MEMBERSHIP_BYTES)
        if kept.api_key is not None:
            key_line(kept.api_key)
        return kept
    except FileNotFoundError:
        return None
    except MalformedInput as fault:
        log.warning("membership_damaged", error=str(fault))
    except OSError as fault:
        raise ConfigurationError(f"{path}: {fault.strerror}", hint="move it away: the worker enrols anew") from fault
    except ConfigurationError:
        log.warning("membership_damaged", error="what it keeps as a key is none")
    return None


def keep_membership(directory: Path, membership: Membership) -> None:
    """Keep a membership in place of the one before.

    Raises:
        ConfigurationError: the disk doesn't take it.
    """
    try:
        write_private(directory / MEMBERSHIP_FILE, encode(membership))
    except OSError as fault:
        raise ConfigurationError(
            f"the API key can't be kept in {directory}: {fault.strerror}", hint="free some space"
        ) from fault


def read_settings(directory: Path, *, key_id: str) -> tuple[Settings, str] | None:
    """The settings that were kept, and who signed them; None where there are none by this key."""
    try:
        body = (directory / SETTINGS_FILE).read_bytes()
        return verify_settings(body[:MAX_SETTINGS_BYTES], key_id=key_id)
    except (FileNotFoundError, MalformedInput, UntrustedSettings):
        return None


def keep_settings(directory: Path, body: bytes) -> None:
    """Keep a door's answer; it is only of use if the door is down at the next start."""
    try:
        write_private(directory / SETTINGS_FILE, body)
    except OSError as full:
        log.warning("settings_not_kept", reason=full.strerror)
