"""Secrets: kept in the operating system's keychain, put into templates at the last moment.

    errors    what can go wrong, in words       keychain  the backend in use, entries in parts (owns ``keyring``)
    parts     how large secrets are cut         file      Coffer's own backend, an encrypted file
    choice    which of the two was chosen

``keychain`` and ``file`` are loaded at the first secret: a daemon without secrets never loads ``keyring``. Nothing
here logs or raises a secret: messages name the reference. A keychain may block for as long as a person looks at a
prompt, so each question is asked from a thread and waited for within a bound.
"""

import asyncio
import re
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from coffer_common.names import SERVER_NAME_RULE, is_server_name
from coffer_supervisor.credentials.choice import is_chosen
from coffer_supervisor.credentials.errors import NO_KEYCHAIN_HINT, CredentialError, MissingCredential

if TYPE_CHECKING:
    from coffer_supervisor.credentials.keychain import Keychain

__all__ = ["NO_KEYCHAIN_HINT", "CredentialError", "CredentialVault", "MissingCredential", "references"]

SERVICE: Final = "coffer"
KEYCHAIN_SECONDS: Final = 15.0
MAX_SECRET: Final = 1024 * 1024

_REFERENCE: Final = re.compile(r"\$\{(?:([^}]*)\}|.*)", re.DOTALL)
_LEFT_OPEN: Final = ""  # the reference of "${" without its "}": what follows may be anything, so it is not told
_T = TypeVar("_T")


def references(template: str) -> list[str]:
    """What stands between ``${`` and ``}`` in ``template``, in order, each once; not checked for being a
    name.

    An empty one stands for ``${`` without its ``}``.
    """
    return list(dict.fromkeys(match.group(1) or _LEFT_OPEN for match in _REFERENCE.finditer(template)))


class CredentialVault:
    """The secrets of ``service``, in the machine's keychain or in ``folder``. One question at a time; each waits at
    most ``seconds``."""

    def __init__(
        self, *, service: str = SERVICE, seconds: float = KEYCHAIN_SECONDS, folder: Path | None = None
    ) -> None:
        self._service = service
        self._seconds = seconds
        self._folder = folder
        self._turn = asyncio.Lock()
        self._writing = asyncio.Lock()
        self._unanswered: asyncio.Future[Any] | None = None

    @property
    def backend(self) -> Literal["keychain", "file"]:
        """Where secrets are kept."""
        return "file" if self._folder is not None and is_chosen(self._folder) else "keychain"

    @property
    def folder(self) -> Path | None:
        """Where Coffer's own file is, or would be."""
        return self._folder

    async def resolve(self, template: str, *, where: str = "") -> str:
        """``template`` with every ``${reference}`` replaced by its secret, which is not looked at for
        templates again.

        ``where`` says in errors whose template it is (``env TOKEN of server github``). Raises
        ``MissingCredential`` for a reference that is not stored or is no name (``${VAR:-default}``),
        ``CredentialError`` for a keychain that does not answer.
        """
        return (await self.fill(template, where=where))[0]

    async def fill(self, template: str, *, where: str = "") -> tuple[str, list[str]]:
        """The same, and the secrets that were put in."""
        wanted = references(template)
        secrets: dict[str, str] = {}
        for reference in wanted:
            secret = await self.get(reference) if is_server_name(reference) else None
            if secret is None:
                raise _missing(reference, where)
            secrets[reference] = secret
        if not wanted:
            return template, []
        return _REFERENCE.sub(lambda match: secrets[match.group(1)], template), list(secrets.values())

    async def get(self, reference: str) -> str | None:
        """The secret, or None if there is none. Raises ``CredentialError``."""
        return await self._ask(lambda: self._ring().get(reference))

    async def set(self, reference: str, secret: str) -> None:
        """Store a secret, and read it back before it counts as stored. Raises ``CredentialError``."""
        if not is_server_name(reference):
            raise CredentialError(
                "invalid_name",
                f"{reference!r} cannot name a credential",
                f"A name is {SERVER_NAME_RULE}.",
            )
        await self.keep(reference, secret)

    async def keep(self, reference: str, secret: str) -> None:
        """The same for Coffer's own references, which no template can name. Raises ``CredentialError``."""
        if not secret:
            raise CredentialError(
                "empty_secret", f"the secret for {reference} is empty", "Nothing has been stored; give it again."
            )
        if len(secret) > MAX_SECRET or not _encodable(secret):
            message = f"the secret for {reference} is longer than {MAX_SECRET} characters, or no text"
            raise CredentialError("invalid_secret", message, "Nothing has been stored.")
        async with self._writing:
            await self._set(reference, secret)

    async def _set(self, reference: str, secret: str) -> None:
        if not await self._ask(lambda: self._ring().set(reference, secret)):
            raise CredentialError(
                "keychain_forgets",
                f"the keychain took the secret for {reference} but does not give it back as it was",
                NO_KEYCHAIN_HINT,
            )

    async def delete(self, reference: str) -> bool:
        """Remove a secret; False if there was none. Raises ``CredentialError``."""
        async with self._writing:
            return await self._ask(lambda: self._ring().delete(reference))

    async def use_file(self, known: Sequence[str]) -> tuple[list[str], list[str]]:
        """Keep secrets in the encrypted file from now on. Raises ``CredentialError``.

        Of the references ``known``: those whose secrets were moved there, and those whose secrets the keychain does
        not give, so that they must be stored again.
        """
        folder = self._folder
        if folder is None:
            raise CredentialError("no_folder", "there is no folder for an encrypted file", "")
        async with self._writing:
            old = await self._from_keychain(known)
            self._unanswered = None  # the file answers whether or not the keychain ever does
            await self._ask(lambda: _choose(folder))
            there = {reference for reference in known if await self.get(reference) is not None}
            for reference in known:
                if reference in old and reference not in there:
                    await self._set(reference, old[reference])
            await self._clear_keychain(list(old))
        moved = [reference for reference in known if reference in old and reference not in there]
        return moved, [reference for reference in known if reference not in old and reference not in there]

    async def _from_keychain(self, known: Sequence[str]) -> dict[str, str]:
        found: dict[str, str] = {}
        for reference in known:
            try:
                secret = await self._ask(lambda name=reference: self._machines().get(name))  # type: ignore[misc]
            except CredentialError:  # none here, locked, or silent: whose secrets are lost is told
                break
            if secret is not None:
                found[reference] = secret
        return found

    async def _clear_keychain(self, moved: Sequence[str]) -> None:
        for reference in moved:
            try:
                await self._ask(lambda name=reference: self._machines().delete(name))  # type: ignore[misc]
            except CredentialError:  # it stays in the keychain, where it was safe before
                return

    def _ring(self) -> "Keychain":
        from coffer_supervisor.credentials import keychain  # keyring is slow to load, and not needed by most

        return keychain.Keychain(keychain.chosen(self._folder), self._service)

    def _machines(self) -> "Keychain":
        from coffer_supervisor.credentials import keychain

        return keychain.Keychain(keychain.machines_own(), self._service)

    async def _ask(self, question: Callable[[], _T]) -> _T:
        """Ask the keychain from a thread of its own, one at a time."""
        async with self._turn:
            if self._unanswered is not None and not self._unanswered.done():
                # Another thread would only block beside the first.
                raise _silent("still has not answered an earlier question")
            answer: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
            answer.add_done_callback(_retrieve)
            self._unanswered = answer
            # A daemon thread: one that hangs must not hold up the end of the process.
            threading.Thread(target=_answer, args=(question, answer), name="keychain", daemon=True).start()
            done, _ = await asyncio.wait([answer], timeout=self._seconds)
            if not done:
                raise _silent(f"did not answer within {self._seconds:g} s")
        return answer.result()


def _answer(question: Callable[[], _T], answer: "asyncio.Future[_T]") -> None:
    """Runs in the thread."""
    try:
        result = question()
    except CredentialError as error:
        _settle(answer, answer.set_exception, error)
    except Exception as error:  # a backend may raise anything; its text may hold anything, so only its class is told
        from coffer_supervisor.credentials.keychain import refusal

        _settle(answer, answer.set_exception, refusal(error))
    else:
        _settle(answer, answer.set_result, result)


def _settle(answer: "asyncio.Future[_T]", setter: Callable[..., None], value: object) -> None:
    def settle() -> None:
        if not answer.done():
            setter(value)

    try:
        answer.get_loop().call_soon_threadsafe(settle)
    except RuntimeError:
        return  # the loop has ended: nobody waits any more


def _choose(folder: Path) -> None:
    from coffer_supervisor.credentials.keychain import choose_file

    choose_file(folder)


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _retrieve(answer: "asyncio.Future[Any]") -> None:
    if not answer.cancelled():
        answer.exception()  # seen: nobody waits for a late answer


def _silent(what: str) -> CredentialError:
    return CredentialError(
        "keychain_silent",
        f"the keychain {what}; it may be waiting for you to unlock it",
        "Unlock it and try again, or choose Coffer's own encrypted file with: coffer credential use-file",
    )


def _missing(reference: str, where: str) -> MissingCredential:
    place = f" in {where}" if where else ""
    if not is_server_name(reference):
        return MissingCredential(
            reference,
            f"${{{reference}}}{place} is no reference to a credential",
            "Only ${name} is filled in: no defaults, no environment variables. Store the secret with: "
            "coffer credential set NAME",
        )
    return MissingCredential(
        reference,
        f"there is no credential {reference}, which ${{{reference}}}{place} refers to",
        f"Store it with: coffer credential set {reference}",
    )
