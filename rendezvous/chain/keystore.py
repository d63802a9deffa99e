"""The encrypted file of a key (Web3 Secret Storage v3, as geth writes it): made, read, unlocked; and its passphrase.

Key and passphrase come from files or a prompt, never from a command line, which every user of the machine can read.
Neither stands in an error of ours. The address is in the file unencrypted: showing it needs no passphrase.
"""

from __future__ import annotations

import os
import secrets
import stat
import sys
from pathlib import Path
from typing import Any, Final

import msgspec

from swarm.errors import ConfigurationError
from swarm.identity import write_private
from swarm.model import Address

__all__ = ["keystore_address", "make_keystore", "parse_key", "read_passphrase", "read_secret", "unlock"]

_KEY_BYTES: Final = 32
#: The order of secp256k1: a key is below it, and above zero.
_ORDER: Final = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
PASSPHRASE_CHARS: Final = 1_024


def make_keystore(path: Path, passphrase: str, *, key: bytes | None = None) -> Address:
    """Encrypt a key, a new one unless it is given, and write it, 0600; an existing file is never touched.

    Raises:
        ConfigurationError: there is a file already, or it can't be written.
    """
    from eth_account import Account

    if path.exists():
        raise ConfigurationError(
            f"{path} exists already", hint="it may hold money: move it away, or name another file with --chain-key"
        )
    account = Account.from_key(key if key is not None else secrets.token_bytes(_KEY_BYTES))
    encrypted = Account.encrypt(account.key, passphrase)
    try:
        write_private(path, msgspec.json.format(msgspec.json.encode(encrypted)) + b"\n")
    except OSError as fault:
        raise ConfigurationError(f"{path} can't be written: {fault.strerror}") from fault
    address: Address = account.address
    return address


def keystore_address(path: Path) -> Address:
    """Whose key is in a keystore.

    Raises:
        ConfigurationError: there is none, or it doesn't say.
    """
    from eth_utils.address import is_address, to_checksum_address

    address = "0x" + str(_read(path).get("address", "")).removeprefix("0x")
    if not is_address(address):
        raise ConfigurationError(f"{path} doesn't say whose key it holds", hint="is it the JSON file of a keystore v3?")
    return to_checksum_address(address)


def unlock(path: Path, passphrase: str) -> bytes:
    """The key in a keystore, 32 bytes, secret.

    Raises:
        ConfigurationError: it can't be read, or the passphrase isn't its own.
    """
    from eth_account import Account

    encrypted = _read(path)
    try:
        return bytes(Account.decrypt(encrypted, passphrase))
    except (ValueError, TypeError, KeyError, NotImplementedError) as fault:
        # The library's words may hold what was read: only its kind is told.
        raise ConfigurationError(
            f"{path} can't be unlocked ({type(fault).__name__})", hint="is it the passphrase of this keystore?"
        ) from None


def _read(path: Path) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(path.read_bytes())
    except FileNotFoundError as fault:
        raise ConfigurationError(
            f"there is no wallet at {path}", hint="swarm-root wallet new makes one; --chain-key names another file"
        ) from fault
    except OSError as fault:
        raise ConfigurationError(f"{path} can't be read: {fault.strerror}") from fault
    except msgspec.MsgspecError:
        found = None
    if not isinstance(found, dict):
        raise ConfigurationError(f"{path} isn't a keystore", hint="it is the JSON file of an encrypted key")
    return found


# ── secrets ───────────────────────────────────────────────────────────────────────────────────────────────────────


def parse_key(text: str) -> bytes:
    """A private key as people keep it: 64 hex digits, with or without ``0x``.

    Raises:
        ConfigurationError: it isn't one; the text isn't repeated.
    """
    try:
        key = bytes.fromhex(text.strip().removeprefix("0x"))
    except ValueError:
        key = b""
    if len(key) != _KEY_BYTES or not 0 < int.from_bytes(key) < _ORDER:
        raise ConfigurationError("that isn't a private key", hint="it has 64 hex digits, with or without 0x")
    return key


def read_passphrase(file: Path | None, *, confirm: bool = False) -> str:
    """The passphrase of a keystore: from a file that is its owner's alone, or else typed in at the terminal.

    Args:
        file: its first line is the passphrase; None asks.
        confirm: ask twice, for a new one.

    Raises:
        ConfigurationError: the file can't be read, is readable by others or empty; or there is nobody to ask.
    """
    import click

    if file is not None:
        passphrase = read_secret(file)
    elif sys.stdin.isatty():
        passphrase = click.prompt("passphrase of the wallet", hide_input=True, confirmation_prompt=confirm, err=True)
    else:
        raise ConfigurationError(
            "the wallet's passphrase isn't known, and there is no terminal to ask at",
            hint="give --passphrase-file, or SWARM_ROOT_PASSPHRASE_FILE",
        )
    if not 0 < len(passphrase) <= PASSPHRASE_CHARS:
        raise ConfigurationError(f"a passphrase has 1 to {PASSPHRASE_CHARS} characters")
    return passphrase


def read_secret(file: Path) -> str:
    """The first line of a file that its owner alone can read.

    Raises:
        ConfigurationError: it can't be read, or others can read it too.
    """
    try:
        with file.open("rb") as opened:
            if stat.S_IMODE(os.fstat(opened.fileno()).st_mode) & 0o077:
                raise ConfigurationError(f"{file} is readable by others", hint=f"chmod 600 {file}")
            return opened.read().decode().partition("\n")[0].removesuffix("\r")
    except OSError as fault:
        raise ConfigurationError(f"{file} can't be read: {fault.strerror}") from fault
    except UnicodeDecodeError:
        raise ConfigurationError(f"{file} isn't text") from None
