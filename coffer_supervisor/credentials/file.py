"""Coffer's own ``keyring`` backend: one encrypted file, for machines without a keychain. Chosen, never fallen back to.

Owns the folder ``credentials/`` under the home: ``key`` and ``secrets``, both 0600. That the folder holds either is
the choice. The file is AES-256-GCM over the JSON of all entries, written whole: to the disk under another name first,
then put in place. It keeps secrets from backups and glances that catch one file only, not from who may read both.
"""

import base64
import json
import os
import secrets
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from keyring.backend import KeyringBackend
from keyring.errors import InitError, KeyringError, PasswordDeleteError, PasswordSetError

from coffer_supervisor.credentials.choice import is_chosen, key_path, secrets_path

_MAGIC: Final = b"coffer-secrets-1\n"
_NONCE_BYTES: Final = 12
_KEY_BYTES: Final = 32


class UnreadableFile(KeyringError):
    """The file or its key is damaged or missing. ``path`` names the culprit; nothing is overwritten."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(why)
        self.path = path
        self.why = why


class NotWritten(PasswordSetError):
    """The disk did not take it; what was there before still is."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(why)
        self.path = path
        self.why = why


class FileKeyring(KeyringBackend):
    """Entries of every service in ``folder``. Blocks: each write reaches the disk before it returns. One writer."""

    priority = 0.1  # below every other: keyring's own search finds no reason to take it

    def __init__(self, folder: Path | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._folder = folder

    def choose(self) -> None:
        """Make the folder and the key, if they are not there. Raises NotWritten or UnreadableFile."""
        folder = self._home()
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            folder.chmod(0o700)
        except OSError as error:
            raise NotWritten(folder, error.strerror or "") from error
        if not is_chosen(folder):
            _write(key_path(folder), base64.b64encode(secrets.token_bytes(_KEY_BYTES)) + b"\n")
        if not secrets_path(folder).exists():  # the first time, or it was lost: who chooses again begins anew
            self._save({})
        self._read()

    def get_password(self, service: str, username: str) -> str | None:
        """The entry, or None. Raises UnreadableFile."""
        return self._read().get(_entry(service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        """Write or replace an entry."""
        self._save({**self._read(), _entry(service, username): password})

    def delete_password(self, service: str, username: str) -> None:
        """Take an entry away."""
        entries = self._read()
        if entries.pop(_entry(service, username), None) is None:
            raise PasswordDeleteError("no such entry")
        self._save(entries)

    def _home(self) -> Path:
        if self._folder is None:
            raise InitError("this backend needs a folder")
        return self._folder

    def _key(self) -> AESGCM:
        path = key_path(self._home())
        try:
            key = base64.b64decode(_content(path))
        except ValueError:
            key = b""
        if len(key) != _KEY_BYTES:
            raise UnreadableFile(path, "is damaged")
        return AESGCM(key)

    def _read(self) -> dict[str, str]:
        path, cipher = secrets_path(self._home()), self._key()
        raw = _content(path)
        nonce, sealed = raw[len(_MAGIC) :][:_NONCE_BYTES], raw[len(_MAGIC) + _NONCE_BYTES :]
        if not raw.startswith(_MAGIC) or len(nonce) != _NONCE_BYTES:
            raise UnreadableFile(path, "is damaged")
        try:
            entries: dict[str, str] = json.loads(cipher.decrypt(nonce, sealed, _MAGIC))
        except InvalidTag:
            raise UnreadableFile(path, "is damaged, or its key is another one") from None
        return entries

    def _save(self, entries: dict[str, str]) -> None:
        nonce = secrets.token_bytes(_NONCE_BYTES)
        sealed = self._key().encrypt(nonce, json.dumps(entries).encode(), _MAGIC)
        _write(secrets_path(self._home()), _MAGIC + nonce + sealed)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise UnreadableFile(path, "is missing") from None
    except OSError as error:
        raise UnreadableFile(path, f"cannot be read ({error.strerror})") from error


def _entry(service: str, username: str) -> str:
    return f"{service}/{username}"


def _write(path: Path, data: bytes) -> None:
    """Replace a file so that a reader, or a machine that loses power, sees the old one or the new one whole."""
    beside = path.with_name(f"{path.name}.new")
    try:
        beside.unlink(missing_ok=True)
        try:
            with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, path)
        except OSError:
            beside.unlink(missing_ok=True)
            raise
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise NotWritten(path, error.strerror or type(error).__name__) from error
