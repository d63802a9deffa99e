"""Words that cross the network are what their patterns say, and nothing around them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from swarm.errors import MalformedInput
from swarm.wire import KindText, ReasonText, SignatureText, TierText, WeiText, decode


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        (WeiText, "5"),
        (SignatureText, "0x" + "1" * 130),
        (KindText, "noop"),
        (ReasonText, "timeout"),
        (TierText, "bulk"),
    ],
)
def test_a_line_break_behind_a_word_makes_it_another_word(shape: Any, text: str) -> None:
    assert decode(json.dumps(text), shape) == text
    for odd in (text + "\n", "\n" + text, text + "\r\n"):
        with pytest.raises(MalformedInput):
            decode(json.dumps(odd), shape)
