"""What can go wrong with a secret, in words that never hold one."""

from typing import Final

NO_KEYCHAIN_HINT: Final = (
    "Unlock or install a keychain, or choose Coffer's own encrypted file with: coffer credential use-file"
)


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
