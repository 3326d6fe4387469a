"""Coffer's own encrypted file as a keyring backend, and the vault that was told to use it."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import keyring
import pytest
from keyring.backends import fail
from keyring.errors import InitError, PasswordDeleteError

from coffer_supervisor.credentials import CredentialError, CredentialVault
from coffer_supervisor.credentials.choice import is_chosen
from coffer_supervisor.credentials.file import FileKeyring, NotWritten, UnreadableFile
from tests.unit.test_credentials import Memory, Prompting

SECRET = "s3cr3t-marker-é\U0001f600-end"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the file would be."""
    return tmp_path / "credentials"


@pytest.fixture
def machine() -> Iterator[Memory]:
    """A machine with a keychain."""
    before, ring = keyring.get_keyring(), Memory()
    keyring.set_keyring(ring)
    yield ring
    keyring.set_keyring(before)


@pytest.fixture
def without_keychain() -> Iterator[None]:
    """A machine without one."""
    before = keyring.get_keyring()
    keyring.set_keyring(fail.Keyring())
    yield
    keyring.set_keyring(before)


def test_entries_are_kept_encrypted_and_private(folder: Path) -> None:
    """Files 0600 in a folder 0700, nothing of a secret or of its name in either."""
    ring = FileKeyring(folder)
    assert not is_chosen(folder)
    ring.choose()
    assert is_chosen(folder)
    assert ring.get_password("coffer", "github-token") is None
    ring.set_password("coffer", "github-token", SECRET)
    ring.set_password("coffer", "big", "x" * 100_000)
    assert FileKeyring(folder).get_password("coffer", "github-token") == SECRET
    assert FileKeyring(folder).get_password("other", "github-token") is None
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert sorted(path.name for path in folder.iterdir()) == ["key", "secrets"]
    for path in folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert b"s3cr3t" not in path.read_bytes()
        assert b"github-token" not in path.read_bytes() or path.name == "key"
    ring.delete_password("coffer", "github-token")
    assert ring.get_password("coffer", "github-token") is None
    with pytest.raises(PasswordDeleteError):
        ring.delete_password("coffer", "github-token")


def test_choosing_again_changes_nothing(folder: Path) -> None:
    """The key stays, and with it every secret."""
    ring = FileKeyring(folder)
    ring.choose()
    ring.set_password("coffer", "gh", SECRET)
    FileKeyring(folder).choose()
    assert FileKeyring(folder).get_password("coffer", "gh") == SECRET


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("key", None, "missing"),
        ("key", b"", "damaged"),
        ("key", b"AAAA", "damaged"),
        ("key", b"A", "damaged"),
        ("key", b"A" * 43 + b"=", "another"),
        ("secrets", b"", "damaged"),
        ("secrets", b"coffer-secrets-1\n123", "damaged"),
        ("secrets", b"coffer-secrets-1\n" + bytes(40), "damaged"),
    ],
)
def test_damage_is_told_and_nothing_is_overwritten(folder: Path, name: str, content: bytes | None, why: str) -> None:
    """A lost or changed file is an error that names it; a write does not take its place."""
    ring = FileKeyring(folder)
    ring.choose()
    ring.set_password("coffer", "gh", SECRET)
    path = folder / name
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    kept = {one.name: one.read_bytes() for one in folder.iterdir()}
    for use in (
        lambda: ring.get_password("coffer", "gh"),
        lambda: ring.set_password("coffer", "gh", "new"),
        lambda: ring.delete_password("coffer", "gh"),
    ):
        with pytest.raises(UnreadableFile) as raised:
            use()
        assert why in str(raised.value)
    assert {one.name: one.read_bytes() for one in folder.iterdir()} == kept


def test_a_lost_file_is_told_and_begun_anew_by_who_chooses_again(folder: Path) -> None:
    """A store that has gone does not look like an empty one; only the choice makes a new one."""
    ring = FileKeyring(folder)
    ring.choose()
    (folder / "secrets").unlink()
    assert is_chosen(folder)
    with pytest.raises(UnreadableFile, match="missing"):
        ring.get_password("coffer", "gh")
    with pytest.raises(UnreadableFile, match="missing"):
        ring.set_password("coffer", "gh", SECRET)
    ring.choose()
    assert ring.get_password("coffer", "gh") is None
    (folder / "key").unlink()
    with pytest.raises(UnreadableFile, match="missing"):
        ring.choose()


def test_what_is_no_file_is_told(folder: Path) -> None:
    """A folder in the place of the file, and a write that could not take its place: nothing is left beside it."""
    ring = FileKeyring(folder)
    ring.choose()
    (folder / "secrets").unlink()
    (folder / "secrets").mkdir()
    with pytest.raises(UnreadableFile, match="cannot be read"):
        ring.get_password("coffer", "gh")
    with pytest.raises(NotWritten):
        ring._save({})
    assert sorted(path.name for path in folder.iterdir()) == ["key", "secrets"]


def test_a_write_that_fails_leaves_the_old_file(folder: Path) -> None:
    """The new file stands beside the old one until it is whole; where it cannot, the old one stays."""
    ring = FileKeyring(folder)
    ring.choose()
    ring.set_password("coffer", "gh", SECRET)
    (folder / "secrets.new").mkdir()
    (folder / "secrets.new" / "x").touch()
    with pytest.raises(NotWritten) as raised:
        ring.set_password("coffer", "gh", "new")
    assert raised.value.path == folder / "secrets"
    assert ring.get_password("coffer", "gh") == SECRET


def test_what_a_crash_left_beside_it_is_replaced(folder: Path) -> None:
    """A half-written file of an earlier run is in nobody's way."""
    ring = FileKeyring(folder)
    ring.choose()
    (folder / "secrets.new").write_bytes(b"half")
    ring.set_password("coffer", "gh", SECRET)
    assert ring.get_password("coffer", "gh") == SECRET
    assert not (folder / "secrets.new").exists()


def test_it_is_never_taken_by_itself() -> None:
    """keyring's own search may find the class; it refuses to keep anything without a folder."""
    with pytest.raises(InitError):
        FileKeyring().get_password("coffer", "gh")


async def test_the_vault_uses_the_file_once_it_is_chosen(folder: Path, without_keychain: None) -> None:
    """K07: without a keychain storing is refused; after the choice it works, also for the next run."""
    vault = CredentialVault(folder=folder)
    with pytest.raises(CredentialError, match="no usable keychain"):
        await vault.set("gh", SECRET)
    assert vault.backend == "keychain"
    assert not folder.exists()
    assert await vault.use_file(["gh"]) == ([], ["gh"])
    assert vault.backend == "file"
    await vault.set("gh", SECRET)
    await vault.set("big", "x" * 50_000)
    again = CredentialVault(folder=folder)
    assert await again.resolve("Bearer ${gh}") == f"Bearer {SECRET}"
    assert await again.get("big") == "x" * 50_000
    assert await again.use_file(["gh", "big", "other"]) == ([], ["other"])
    assert await again.delete("gh")
    assert await again.get("gh") is None


async def test_secrets_move_from_the_keychain_to_the_file(folder: Path, machine: Memory) -> None:
    """Those that the keychain gives go along and are removed there; large ones and their parts too."""
    vault = CredentialVault(folder=folder)
    await vault.set("small", SECRET)
    await vault.set("large", "x" * 5000)
    machine.set_password("coffer", "strangers", "keep")
    assert await vault.use_file(["small", "large", "gone"]) == (["small", "large"], ["gone"])
    assert await vault.get("small") == SECRET
    assert await vault.get("large") == "x" * 5000
    assert machine.kept == {("coffer", "strangers"): "keep"}


async def test_a_keychain_that_hangs_does_not_hold_up_the_choice(folder: Path) -> None:
    """K07: a keychain that waits for a person is left behind; what it holds is told to be stored again."""
    before, ring = keyring.get_keyring(), Prompting()
    keyring.set_keyring(ring)
    try:
        vault = CredentialVault(folder=folder, seconds=0.05)
        with pytest.raises(CredentialError):
            await vault.get("gh")
        stuck = vault._unanswered
        vault._seconds = 10
        assert await vault.use_file(["gh"]) == ([], ["gh"])
        await vault.set("gh", SECRET)
        assert await vault.get("gh") == SECRET
        ring.released.set()
        assert stuck is not None
        await stuck
    finally:
        ring.released.set()
        keyring.set_keyring(before)


async def test_a_keychain_that_refuses_to_forget_is_no_obstacle(folder: Path) -> None:
    """The secret is in the file; that a copy stays in the keychain, where it was safe before, breaks nothing."""

    class Clinging(Memory):
        def delete_password(self, service: str, username: str) -> None:
            raise OSError(SECRET)

    before = keyring.get_keyring()
    keyring.set_keyring(Clinging())
    try:
        vault = CredentialVault(folder=folder)
        await vault.set("gh", SECRET)
        assert await vault.use_file(["gh"]) == (["gh"], [])
        assert await vault.get("gh") == SECRET
    finally:
        keyring.set_keyring(before)


async def test_a_folder_that_cannot_be_made(folder: Path, without_keychain: None) -> None:
    """The refusal names the place, and nothing is chosen."""
    folder.write_text("in the way")
    vault = CredentialVault(folder=folder)
    with pytest.raises(CredentialError, match="could not be written"):
        await vault.use_file([])
    assert vault.backend == "keychain"
    assert folder.read_text() == "in the way"


async def test_refusals_of_the_file_are_words(folder: Path, without_keychain: None) -> None:
    """Damage and a full disk: what, where, and what to do next; never a secret."""
    vault = CredentialVault(folder=folder)
    await vault.use_file([])
    await vault.set("gh", SECRET)
    (folder / "secrets.new").mkdir()
    (folder / "secrets.new" / "x").touch()
    with pytest.raises(CredentialError) as full:
        await vault.set("gh", SECRET)
    assert (full.value.code, str(folder / "secrets") in full.value.message) == ("secrets_not_written", True)
    (folder / "key").unlink()
    with pytest.raises(CredentialError) as lost:
        await vault.get("gh")
    assert lost.value.code == "secrets_unreadable"
    assert "missing" in lost.value.message
    assert "s3cr3t" not in str(full.value) + str(lost.value)


async def test_limits_of_a_secret(folder: Path, without_keychain: None) -> None:
    """More than a mebibyte, or what is no text, is refused before anything is asked; without a folder no file."""
    vault = CredentialVault(folder=folder)
    for secret in ("x" * (1024 * 1024 + 1), "\ud800"):
        with pytest.raises(CredentialError) as refused:
            await vault.set("gh", secret)
        assert refused.value.code == "invalid_secret"
    with pytest.raises(CredentialError, match="no folder"):
        await CredentialVault().use_file([])
