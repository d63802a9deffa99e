"""Whole numbers in what strangers send: query parameters, headers, cursors."""

from __future__ import annotations

__all__ = ["whole_number"]


def whole_number(text: str, *, at_most: int) -> int | None:
    """Read a whole number.

    Args:
        text: of any length: Python refuses to read more than 4,300 digits, and a header has room for them.
        at_most: the largest that makes sense.

    Returns:
        None where it is none, or larger.
    """
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(at_most))):
        return None
    number = int(text)
    return number if number <= at_most else None
