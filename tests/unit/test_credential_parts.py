"""How large secrets are cut and put together: pure rules, and the keychain's entries in their order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from keyring.backend import KeyringBackend
from keyring.errors import PasswordSetError

from coffer_supervisor.credentials import parts
from coffer_supervisor.credentials.keychain import Keychain

LIMIT = 2560


class Small(KeyringBackend):
    """Refuses more than 2560 bytes of UTF-16 an entry; ``writes`` more are taken before the machine loses power."""

    priority = 1

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[str, str] = {}
        self.writes: int | None = None

    def get_password(self, service: str, username: str) -> str | None:
        return self.kept.get(username)

    def set_password(self, service: str, username: str, password: str) -> None:
        self._spend()
        if len(password.encode("utf-16-le")) > LIMIT:
            raise PasswordSetError("too large")
        self.kept[username] = password

    def delete_password(self, service: str, username: str) -> None:
        self._spend()
        del self.kept[username]

    def _spend(self) -> None:
        if self.writes is not None:
            if not self.writes:
                raise KeyboardInterrupt
            self.writes -= 1


@given(st.text(min_size=1, max_size=20_000))
def test_what_is_cut_fits_and_comes_back(secret: str) -> None:
    """Any text is stored in entries that fit and read back as it was."""
    pieces = parts.cut(secret)
    assert all(len(piece.encode("utf-16-le")) <= parts.PART_BYTES for piece in pieces)
    if pieces:
        head = parts.head_of(pieces, None)
        assert parts.read_head(str(head)) == head
        assert parts.joined(pieces, head) == secret
        assert parts.joined([*pieces[:-1], None], head) is None
        assert parts.joined([*pieces[:-1], pieces[-1] + "x"], head) is None
    else:
        assert parts.read_head(secret) is None


def test_small_secrets_stand_by_themselves_and_markers_are_not_mistaken() -> None:
    """Only what does not fit is cut, and a secret that looks like a marker."""
    assert parts.cut("x" * 1200) == []
    assert len(parts.cut("x" * 1201)) == 2
    assert len(parts.cut("\U0001f600" * 700)) == 2
    assert parts.cut(parts.MARKER + "a:1:x") == [parts.MARKER + "a:1:x"]
    assert parts.read_head(None) is None


@pytest.mark.parametrize("broken", ["", "a", "c:1:x", "a:x:x", "a:1:x:y", "a:99999:x"])
def test_a_marker_that_cannot_be_read_reads_as_absent(broken: str) -> None:
    """Whoever wrote it, it names no value."""
    head = parts.read_head(parts.MARKER + broken)
    assert head is not None
    assert parts.joined([], head) is None


def test_turns_alternate() -> None:
    """The new parts never overwrite those that the marker names."""
    first = parts.head_of(["x"], None)
    second = parts.head_of(["x"], first)
    assert (first.turn, second.turn, parts.head_of(["x"], second).turn) == ("a", "b", "a")
    assert parts.read_head(str(second)) == second


def test_a_large_secret_is_stored_in_parts_and_shrinking_removes_them() -> None:
    """K08: 6 KiB where 2560 bytes fit; nothing of an older value is left."""
    ring = Small()
    chain = Keychain(ring, "coffer")
    for secret in ("a" * 6144, "b" * 9000, "c" * 2000, "d", "e" * 5000, parts.MARKER):
        assert chain.set("token", secret)
        assert chain.get("token") == secret
        assert len(ring.kept) == 1 + len(parts.cut(secret))
    assert chain.delete("token")
    assert ring.kept == {}
    assert not chain.delete("token")


@pytest.mark.parametrize("before", [None, "old", "o" * 4000])
@pytest.mark.parametrize("after", ["n" * 6144, "n" * 3000, "n"])
def test_a_write_that_is_cut_off_leaves_a_whole_value_or_none(before: str | None, after: str) -> None:
    """K08: power lost after any number of entries: the old value, the new one or none; never a mix. The next write
    and a deletion clear what was left."""
    for writes in range(20):
        ring = Small()
        chain = Keychain(ring, "coffer")
        if before is not None:
            assert chain.set("token", before)
        ring.writes = writes
        try:
            chain.set("token", after)
        except KeyboardInterrupt:
            pass
        ring.writes = None
        assert chain.get("token") in {before, after, None}
        assert chain.set("token", "s" * 2600)
        assert chain.get("token") == "s" * 2600
        assert len(ring.kept) == 4
        chain.delete("token")
        assert ring.kept == {}


def test_a_deletion_that_is_cut_off_leaves_nothing_readable() -> None:
    """What was deleted halfway is absent, and the next deletion clears the rest."""
    for writes in range(5):
        ring = Small()
        chain = Keychain(ring, "coffer")
        chain.set("token", "x" * 4000)
        ring.writes = writes
        try:
            chain.delete("token")
        except KeyboardInterrupt:
            pass
        ring.writes = None
        assert chain.get("token") in ({None} if writes else {"x" * 4000})
        chain.delete("token")
        assert ring.kept == {}


def test_parts_of_another_value_are_never_joined() -> None:
    """K08: a part that was changed or lost makes the value absent, not wrong."""
    for change in (lambda kept: kept.pop("token.a.1"), lambda kept: kept.update({"token.a.1": "y"})):
        ring = Small()
        chain = Keychain(ring, "coffer")
        chain.set("token", "x" * 3000)
        change(ring.kept)
        assert chain.get("token") is None
