"""A person's login to a server, and its end."""

from typing import Literal

from coffer_common.api.shape import Shape


class LoginStarted(Shape, frozen=True, kw_only=True):
    """Where the person must go; ``host`` is whose address that is. ``login`` names it from now on."""

    login: str
    url: str
    host: str


class LoginStatus(Shape, frozen=True, kw_only=True):
    """``error`` says why it failed."""

    login: str
    state: Literal["waiting", "done", "failed"]
    error: str = ""


class LoggedOut(Shape, frozen=True, kw_only=True):
    """``forgotten``: whether there was a login to forget."""

    server: str
    forgotten: bool
