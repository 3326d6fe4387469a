"""The entries of a keychain, by reference: read, written in parts where they are large, read back, removed.

Owns the choice of the ``keyring`` backend and the words for what it raises. Every function blocks for as long as the
keychain does: ``CredentialVault`` asks from a thread. Loaded at the first secret, not before.
"""

import contextlib
from pathlib import Path

import keyring
from keyring.backend import KeyringBackend
from keyring.backends import fail, null
from keyring.errors import InitError, KeyringLocked, NoKeyringError

from coffer_supervisor.credentials import parts
from coffer_supervisor.credentials.choice import is_chosen
from coffer_supervisor.credentials.errors import NO_KEYCHAIN_HINT, CredentialError
from coffer_supervisor.credentials.file import FileKeyring, NotWritten, UnreadableFile


class Keychain:
    """The entries of ``service`` in one ring. Coffer's own file takes a secret of any size in one entry."""

    def __init__(self, ring: KeyringBackend, service: str) -> None:
        self._ring, self._service = ring, service
        self._in_parts = not isinstance(ring, FileKeyring)

    def get(self, reference: str) -> str | None:
        """The secret; None where there is none, or only a part of one."""
        entry = self._entry(reference)
        head = parts.read_head(entry) if self._in_parts else None
        if head is None:
            return entry or None
        names = (parts.part_name(reference, head.turn, number) for number in range(head.count))
        return parts.joined([self._entry(name) for name in names], head)

    def set(self, reference: str, secret: str) -> bool:
        """Store it and read it back; False where it does not come back, and then nothing of it is left."""
        if self._in_parts:
            self._set_in_parts(reference, secret)
        else:
            self._ring.set_password(self._service, reference, secret)
        if self.get(reference) == secret:
            return True
        with contextlib.suppress(Exception):  # what matters is said by False
            self.delete(reference)
        return False

    def _set_in_parts(self, reference: str, secret: str) -> None:
        """The parts first, then what names them, then the old parts go."""
        before = parts.read_head(self._entry(reference))
        pieces = parts.cut(secret)
        head = parts.head_of(pieces, before) if pieces else None
        if head is not None:
            for number, piece in enumerate(pieces):
                self._ring.set_password(self._service, parts.part_name(reference, head.turn, number), piece)
        self._ring.set_password(self._service, reference, secret if head is None else str(head))
        for turn in parts.TURNS:
            self._prune(reference, turn, 0 if head is None or head.turn != turn else head.count)

    def delete(self, reference: str) -> bool:
        """Remove it with all its parts; False if there was none."""
        there = self._entry(reference) is not None
        if there:
            self._ring.delete_password(self._service, reference)
        for turn in parts.TURNS if self._in_parts else ():
            self._prune(reference, turn, 0)
        return there

    def _prune(self, reference: str, turn: parts.Turn, keep: int) -> None:
        """Remove the parts from number ``keep`` on; the last first, so that a cut leaves no gap before one."""
        end = keep
        while self._entry(parts.part_name(reference, turn, end)) is not None:
            end += 1
        for number in range(end - 1, keep - 1, -1):
            self._ring.delete_password(self._service, parts.part_name(reference, turn, number))

    def _entry(self, name: str) -> str | None:
        return self._ring.get_password(self._service, name)


def chosen(folder: Path | None) -> KeyringBackend:
    """The backend in use. Raises CredentialError for none, and for one that encrypts nothing."""
    if folder is not None and is_chosen(folder):
        return FileKeyring(folder)
    return machines_own()


def choose_file(folder: Path) -> None:
    """Use the encrypted file in ``folder`` from now on. Raises NotWritten or UnreadableFile."""
    FileKeyring(folder).choose()


def machines_own() -> KeyringBackend:
    """The keychain of this machine. Raises CredentialError."""
    ring = keyring.get_keyring()
    if isinstance(ring, fail.Keyring | null.Keyring):
        raise CredentialError("no_keychain", "there is no usable keychain here", NO_KEYCHAIN_HINT)
    for candidate in (ring, *getattr(ring, "backends", ())):
        if "plaintext" in type(candidate).__name__.lower():
            raise CredentialError(
                "plaintext_keychain",
                f"the keychain chosen on this machine ({type(candidate).__name__}) stores secrets in plain text",
                NO_KEYCHAIN_HINT,
            )
    return ring


def refusal(error: Exception) -> CredentialError:
    """What a backend raised, told without its text, which may hold anything."""
    name = type(error).__name__
    if isinstance(error, UnreadableFile):
        hint = f"Put it back from a backup; or remove {error.path.parent} and store every secret again."
        return CredentialError("secrets_unreadable", f"{error.path} {error.why}", hint)
    if isinstance(error, NotWritten):
        hint = "Nothing was changed; free some space or mend its permissions, then try again."
        return CredentialError("secrets_not_written", f"{error.path} could not be written ({error.why})", hint)
    if isinstance(error, NoKeyringError | InitError):
        return CredentialError("no_keychain", f"there is no usable keychain here ({name})", NO_KEYCHAIN_HINT)
    if isinstance(error, KeyringLocked):
        return CredentialError("keychain_locked", f"the keychain is locked ({name})", NO_KEYCHAIN_HINT)
    return CredentialError("keychain_failed", f"the keychain refused ({name})", NO_KEYCHAIN_HINT)
