"""Secrets: kept in the operating system's keychain, put into templates at the last moment.

Owns ``keyring`` (imported at the first secret, not before: a daemon without secrets never loads it). Never
logs, stores or raises a secret: messages name the reference. A keychain may block for as long as a person
looks at a prompt, so each question is asked from a thread and waited for within a bound.
"""

import asyncio
import re
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from coffer_common.names import SERVER_NAME_RULE, is_server_name

if TYPE_CHECKING:
    from keyring.backend import KeyringBackend

SERVICE: Final = "coffer"
KEYCHAIN_SECONDS: Final = 15.0
NO_KEYCHAIN_HINT: Final = (
    "Unlock or install a keychain, or choose Coffer's own encrypted file with: coffer credential use-file"
)

_REFERENCE: Final = re.compile(r"\$\{(?:([^}]*)\}|.*)", re.DOTALL)
_LEFT_OPEN: Final = ""  # the reference of "${" without its "}": what follows may be anything, so it is not told
_T = TypeVar("_T")


class CredentialError(Exception):
    """A secret cannot be stored or read. ``code``, ``message`` (what happened) and ``hint`` (what to do
    next).
    """

    def __init__(self, code: str, message: str, hint: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}. {self.hint}" if self.hint else self.message


class MissingCredential(CredentialError):
    """A template refers to a secret that is not stored; ``reference`` is its name."""

    def __init__(self, reference: str, message: str, hint: str) -> None:
        super().__init__("missing_credential", message, hint)
        self.reference = reference


def references(template: str) -> list[str]:
    """What stands between ``${`` and ``}`` in ``template``, in order, each once; not checked for being a
    name.

    An empty one stands for ``${`` without its ``}``.
    """
    return list(dict.fromkeys(match.group(1) or _LEFT_OPEN for match in _REFERENCE.finditer(template)))


class CredentialVault:
    """The keychain's entries of ``service``. One question at a time; each waits at most ``seconds``."""

    def __init__(self, *, service: str = SERVICE, seconds: float = KEYCHAIN_SECONDS) -> None:
        self._service = service
        self._seconds = seconds
        self._turn = asyncio.Lock()
        self._unanswered: asyncio.Future[Any] | None = None

    async def resolve(self, template: str, *, where: str = "") -> str:
        """``template`` with every ``${reference}`` replaced by its secret, which is not looked at for
        templates again.

        ``where`` says in errors whose template it is (``env TOKEN of server github``). Raises
        ``MissingCredential`` for a reference that is not stored or is no name (``${VAR:-default}``),
        ``CredentialError`` for a keychain that does not answer.
        """
        wanted = references(template)
        secrets: dict[str, str] = {}
        for reference in wanted:
            secret = await self.get(reference) if is_server_name(reference) else None
            if secret is None:
                raise _missing(reference, where)
            secrets[reference] = secret
        return _REFERENCE.sub(lambda match: secrets[match.group(1)], template) if wanted else template

    async def get(self, reference: str) -> str | None:
        """The secret, or None if there is none. Raises ``CredentialError``."""
        return await self._ask(lambda ring: ring.get_password(self._service, reference) or None)

    async def set(self, reference: str, secret: str) -> None:
        """Store a secret, and read it back before it counts as stored. Raises ``CredentialError``."""
        if not is_server_name(reference):
            raise CredentialError(
                "invalid_name",
                f"{reference!r} cannot name a credential",
                f"A name is {SERVER_NAME_RULE}.",
            )
        if not secret:
            raise CredentialError(
                "empty_secret", f"the secret for {reference} is empty", "Nothing has been stored; give it again."
            )

        def write(ring: "KeyringBackend") -> bool:
            ring.set_password(self._service, reference, secret)
            return ring.get_password(self._service, reference) == secret

        if not await self._ask(write):
            raise CredentialError(
                "keychain_forgets",
                f"the keychain took the secret for {reference} but does not give it back as it was",
                NO_KEYCHAIN_HINT,
            )

    async def delete(self, reference: str) -> bool:
        """Remove a secret; False if there was none. Raises ``CredentialError``."""

        def remove(ring: "KeyringBackend") -> bool:
            if ring.get_password(self._service, reference) is None:
                return False
            ring.delete_password(self._service, reference)
            return True

        return await self._ask(remove)

    async def _ask(self, question: Callable[["KeyringBackend"], _T]) -> _T:
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


def _answer(question: Callable[["KeyringBackend"], _T], answer: "asyncio.Future[_T]") -> None:
    """Runs in the thread."""
    try:
        result = question(_keyring())
    except CredentialError as error:
        _settle(answer, answer.set_exception, error)
    except Exception as error:  # a backend may raise anything; its text may hold anything, so only its class is told
        _settle(answer, answer.set_exception, _refused(error))
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


def _keyring() -> "KeyringBackend":
    import keyring  # slow, and not needed by most
    from keyring.backends import fail, null

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


def _refused(error: Exception) -> CredentialError:
    from keyring.errors import InitError, KeyringLocked, NoKeyringError

    name = type(error).__name__
    if isinstance(error, NoKeyringError | InitError):
        return CredentialError("no_keychain", f"there is no usable keychain here ({name})", NO_KEYCHAIN_HINT)
    if isinstance(error, KeyringLocked):
        return CredentialError("keychain_locked", f"the keychain is locked ({name})", NO_KEYCHAIN_HINT)
    return CredentialError("keychain_failed", f"the keychain refused ({name})", NO_KEYCHAIN_HINT)


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
