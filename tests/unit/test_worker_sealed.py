"""The sealed state of a parked call: it opens to what it was, or not at all."""

from hypothesis import given
from hypothesis import strategies as st

from coffer_worker.core.sealed import Sealer, State, is_ours

KEY, OTHER = bytes(32), bytes([1]) * 32
WHAT = State(7, 2, 12.5)


def test_it_opens_to_what_was_sealed() -> None:
    sealer = Sealer(KEY, "run")
    text = sealer.seal(WHAT)
    assert is_ours(text)
    assert sealer.open(text) == WHAT
    assert sealer.seal(WHAT) != text, "no nonce is used twice"


def test_another_worker_or_another_run_opens_nothing() -> None:
    """A state of another incarnation is refused, and so is one of another daemon."""
    text = Sealer(KEY, "run").seal(WHAT)
    assert Sealer(OTHER, "run").open(text) is None
    assert Sealer(KEY, "another run").open(text) is None


@given(at=st.integers(min_value=8, max_value=60), by=st.integers(min_value=1, max_value=127))
def test_a_changed_state_opens_nothing(at: int, by: int) -> None:
    """Forged: one character is another one."""
    sealer = Sealer(KEY, "run")
    text = sealer.seal(WHAT)
    place = at % len(text.removeprefix("coffer1.")) + len("coffer1.")
    forged = text[:place] + chr((ord(text[place]) + by) % 128) + text[place + 1 :]
    assert sealer.open(forged) in (None, WHAT)
    if forged.rstrip("=") != text.rstrip("="):
        assert sealer.open(forged) is None or _same_bytes(forged, text)


def _same_bytes(one: str, other: str) -> bool:
    """Base64 readers skip what is no digit, and the last digit has spare bits."""
    import base64

    return base64.urlsafe_b64decode(one.removeprefix("coffer1.")) == base64.urlsafe_b64decode(
        other.removeprefix("coffer1.")
    )


def test_nonsense_opens_nothing() -> None:
    sealer = Sealer(KEY, "run")
    for text in ("coffer1.", "coffer1.####", "coffer1.AAAA", "an upstream's own", "coffer1.é", "coffer1." + "A" * 64):
        assert sealer.open(text) is None
    assert not is_ours("an upstream's own")
