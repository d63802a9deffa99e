"""Amounts of money as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.amounts import parse_wei, show_wei
from swarm.errors import ConfigurationError


@pytest.mark.parametrize(
    ("text", "wei"),
    [
        ("1eth", 10**18),
        ("0.001 ETH", 10**15),
        ("0.000000000000000001eth", 1),
        ("20gwei", 20 * 10**9),
        ("1.5gwei", 1_500_000_000),
        ("5000wei", 5_000),
        ("1.0wei", 1),
        ("0", 0),
        ("0.00", 0),
    ],
)
def test_an_amount_is_read_to_the_wei(text: str, wei: int) -> None:
    assert parse_wei(text) == wei


@pytest.mark.parametrize("text", ["", "eth", "-1eth", "1e3eth", "0x10wei", "1,5eth", ".5eth", "1eth2", "١eth", "nan"])
def test_what_is_no_amount_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="isn't an amount"):
        parse_wei(text)


@pytest.mark.parametrize("text", ["1", "0.5", "3dollars", "1ether"])
def test_an_amount_without_a_known_unit_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="unit") as refused:
        parse_wei(text)
    assert "eth" in (refused.value.hint or "")


@pytest.mark.parametrize("text", ["0.5wei", "0.0000000001gwei"])
def test_parts_of_a_wei_are_refused_and_not_rounded(text: str) -> None:
    with pytest.raises(ConfigurationError, match="parts of a wei"):
        parse_wei(text)


@given(st.integers(0, 2**100))
def test_what_is_shown_reads_back_as_the_same_amount(wei: int) -> None:
    assert parse_wei(show_wei(wei)) == wei
