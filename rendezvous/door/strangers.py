"""What strangers do wrong is no news: anyone can send junk, and each piece of it mustn't cost the log a traceback.

aiohttp answers what isn't HTTP by itself, and logs each as an error of the server with its whole traceback: kilobytes
for a few bytes, before any key or rate is looked at. Faults of our own are logged as before.
"""

from __future__ import annotations

import logging
from typing import Final

from aiohttp import ClientPayloadError, web
from aiohttp.http_exceptions import HttpProcessingError

__all__ = ["quieten_strangers"]

_SERVER: Final = "aiohttp.server"
#: What isn't HTTP, a body that was cut or can't be decoded, a client that has gone.
_THEIRS: Final = (HttpProcessingError, web.RequestPayloadError, ClientPayloadError, ConnectionError)


def quieten_strangers() -> None:
    """Keep faults of clients out of the log, unless it shows the level debug. May be called again."""
    logging.getLogger(_SERVER).addFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    fault = record.exc_info[1] if record.exc_info else None
    if not isinstance(fault, _THEIRS):
        return True
    record.exc_info = None
    record.msg, record.args = f"{record.getMessage()}: {type(fault).__name__}", None
    record.levelno, record.levelname = logging.DEBUG, "DEBUG"
    return logging.getLogger().isEnabledFor(logging.DEBUG)
