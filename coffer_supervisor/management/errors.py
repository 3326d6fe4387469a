"""The management API's refusals: one error model, one place that knows the HTTP status of each code.

Owns ``ApiError`` and the reading of the store's and the keychain's errors. Never carries a secret or a trace.
"""

from http import HTTPStatus

from coffer_supervisor.credentials import CredentialError
from coffer_supervisor.store.errors import Duplicate, Invalid, NotFound, StoreError


class ApiError(Exception):
    """Answered as ``{"error": {"code", "message", "hint"}}`` with ``status``."""

    def __init__(self, status: HTTPStatus, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.hint = hint


def invalid(code: str, message: str, hint: str = "") -> ApiError:
    """The request breaks a rule; nothing was done."""
    return ApiError(HTTPStatus.BAD_REQUEST, code, message, hint)


def missing(what: str, hint: str = "") -> ApiError:
    """There is no such thing."""
    return ApiError(HTTPStatus.NOT_FOUND, "not_found", f"there is no {what}", hint)


def from_store(error: StoreError) -> ApiError:
    """The status that the store's verdict deserves."""
    if error.code == "unreadable_config":
        status = HTTPStatus.INTERNAL_SERVER_ERROR  # what is stored is at fault, not what was asked
    elif isinstance(error, Invalid):
        status = HTTPStatus.BAD_REQUEST
    elif isinstance(error, Duplicate):
        status = HTTPStatus.CONFLICT
    elif isinstance(error, NotFound):
        status = HTTPStatus.NOT_FOUND
    else:
        status = HTTPStatus.SERVICE_UNAVAILABLE
    return ApiError(status, error.code, error.message, error.hint)


def from_credential(error: CredentialError) -> ApiError:
    """A missing or ill-named reference is the request's fault; a keychain that does not answer is not."""
    fault = error.code in ("missing_credential", "invalid_name", "empty_secret", "invalid_secret")
    status = HTTPStatus.BAD_REQUEST if fault else HTTPStatus.SERVICE_UNAVAILABLE
    return ApiError(status, error.code, error.message, error.hint)
