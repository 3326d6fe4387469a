"""Batches: their items as they came, and how many there may be."""

import msgspec
import pytest

from coffer_supervisor.core import batch


def test_items_keep_their_bytes() -> None:
    """What is in a batch is passed on as it came, whatever it is."""
    assert batch.items(b'[ {"id" : 1.50}, 2,null ,[3] ]') == [b'{"id" : 1.50}', b"2", b"null", b"[3]"]
    assert batch.items(b"[]") == []


def test_halves_of_surrogate_pairs_stay_where_they_are() -> None:
    """JavaScript clients send them; they cost no message of the batch, and neither do others that look like them."""
    halves = [rb'"\ufffd"', rb'{"a":"\ud83d cut","b":1.50}', rb'"\ufffd"', rb'"\udc00"', rb'"\\ud800"']
    assert batch.items(b"[" + b", ".join(halves) + b"]") == halves
    with pytest.raises(msgspec.DecodeError):
        batch.items(rb'["\ud800", 1')
    with pytest.raises(msgspec.DecodeError):
        batch.items(rb'["\u00e9", 1')


def test_a_batch_is_bounded_in_number() -> None:
    """Millions of tiny items in one body cost neither memory nor time: they are not even read."""
    assert len(batch.items(b"[" + b"1," * (batch.MAX_ITEMS - 1) + b"1]")) == batch.MAX_ITEMS
    with pytest.raises(batch.TooMany, match="at most 1000 messages"):
        batch.items(b"[" + b"1," * batch.MAX_ITEMS + b"1]")
    with pytest.raises(batch.TooMany):  # the rest is not looked at
        batch.items(b"[" + b"1," * batch.MAX_ITEMS + b"1, rubbish")


@pytest.mark.parametrize("body", [b"[1", b"[1,]", b"[\xff]", b"[1] 2"])
def test_what_is_no_json_says_so(body: bytes) -> None:
    with pytest.raises(msgspec.DecodeError) as caught:
        batch.items(body)
    assert not isinstance(caught.value, msgspec.ValidationError)
