"""The key that pays: unlocked from its encrypted keystore at the start, and in memory only.

It stands in no log, ``repr``, ledger or command line.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rendezvous.chain.sender import SignedTransaction
from swarm.errors import ConfigurationError
from swarm.model import Address

__all__ = ["LocalSigner", "open_signer"]


class LocalSigner:
    """Signs with a key in this process.

    Args:
        key: 32 bytes, secret.
    """

    def __init__(self, key: bytes) -> None:
        from eth_account import Account

        self._account: Final = Account.from_key(key)
        self.address: Address = self._account.address

    def __repr__(self) -> str:
        return f"<LocalSigner {self.address}>"

    def sign_transaction(self, transaction: Mapping[str, Any]) -> SignedTransaction:
        """See ``Signer``."""
        signed = self._account.sign_transaction(dict(transaction))
        return SignedTransaction(raw=bytes(signed.raw_transaction), hash="0x" + bytes(signed.hash).hex())


def open_signer(keystore: Path, passphrase_file: Path | None) -> LocalSigner:
    """Unlock a keystore (Web3 Secret Storage, as geth and others write it).

    Raises:
        ConfigurationError: a file can't be read, or the passphrase isn't the keystore's.
    """
    from eth_account import Account

    if passphrase_file is None:
        raise ConfigurationError("the keystore's passphrase isn't known", hint="give --chain-passphrase-file")
    try:
        encrypted = json.loads(keystore.read_bytes())
        passphrase = passphrase_file.read_text().removesuffix("\n")
    except OSError as fault:
        raise ConfigurationError(f"{fault.filename} can't be read: {fault.strerror}") from fault
    except ValueError as fault:
        raise ConfigurationError(
            f"{keystore} isn't a keystore", hint="it is the JSON file of an encrypted key"
        ) from fault
    try:
        key = Account.decrypt(encrypted, passphrase)
    except (ValueError, TypeError, KeyError, NotImplementedError) as fault:
        raise ConfigurationError(
            f"{keystore} can't be unlocked: {fault}", hint="is it the passphrase of this keystore?"
        ) from None
    return LocalSigner(bytes(key))
