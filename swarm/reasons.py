"""Why somebody can't be reached, in one clause for people. Nothing here knows who it is."""

from __future__ import annotations

import errno
import os
import socket
import ssl
from collections.abc import Iterator

from swarm.certificates import PLAIN, speaks_plain_http

__all__ = ["is_untrusted", "reason_of"]


def reason_of(fault: BaseException) -> str:
    """What went wrong on the way to somebody, in the words of whoever met it.

    Clients wrap what the system said two to four times over, in words of their own such as the addresses of objects:
    the first cause that a system call, a resolver or TLS gave is what people know.
    """
    if speaks_plain_http(fault):
        return PLAIN
    for cause in _causes(fault):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate isn't trusted: {cause.verify_message}"
        if isinstance(cause, TimeoutError) or type(cause).__name__ == "TooSlowError":  # trio's has no base of its own
            return "no answer in time"
        if isinstance(cause, OSError):
            # an event loop puts an address of its own into the system's words; a resolver's number is no errno
            is_systems = cause.errno in errno.errorcode and not isinstance(cause, (ssl.SSLError, socket.gaierror))
            if is_systems and cause.errno is not None:
                return os.strerror(cause.errno)
            if cause.strerror:
                return cause.strerror
    return str(fault) or type(fault).__name__


def is_untrusted(fault: BaseException) -> bool:
    """Whether a connection failed since nobody whom we trust signed the other side's certificate."""
    return any(isinstance(cause, ssl.SSLCertVerificationError) for cause in _causes(fault))


def _causes(fault: BaseException) -> Iterator[BaseException]:
    """The fault, what caused that, and so on; of several at once the first."""
    cause: BaseException | None = fault
    while cause is not None:
        yield cause
        among = cause.exceptions[0] if isinstance(cause, BaseExceptionGroup) else None
        cause = among or cause.__cause__ or cause.__context__  # httpcore hides the last, and says no more than its name
