"""The key that pays: unlocked from its encrypted keystore at the start, and in memory only.

It stands in no log, ``repr``, ledger or command line.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rendezvous.chain.keystore import keystore_address, read_passphrase, unlock
from rendezvous.chain.sender import SignedTransaction
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

    def sign_digest(self, digest: bytes) -> str:
        """The Ethereum signature of 32 bytes (r, s, v)."""
        return "0x" + bytes(self._account.unsafe_sign_hash(digest).signature).hex()

    def sign_transaction(self, transaction: Mapping[str, Any]) -> SignedTransaction:
        """See ``Signer``."""
        signed = self._account.sign_transaction(dict(transaction))
        return SignedTransaction(raw=bytes(signed.raw_transaction), hash="0x" + bytes(signed.hash).hex())


def open_signer(keystore: Path, passphrase_file: Path | None) -> LocalSigner:
    """Unlock a keystore; without a passphrase file the terminal is asked.

    Raises:
        ConfigurationError: a file can't be read, or the passphrase isn't the keystore's.
    """
    keystore_address(keystore)  # before anybody is asked for a passphrase
    return LocalSigner(unlock(keystore, read_passphrase(passphrase_file)))
