"""What all shapes of the management API share, and its one error model."""

import msgspec


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """One JSON object of the API."""


class ErrorDetail(Shape, frozen=True, kw_only=True):
    """``code`` is stable and for programs; ``message`` says what happened, ``hint`` what to do next."""

    code: str
    message: str
    hint: str = ""


class ErrorBody(Shape, frozen=True, kw_only=True):
    """The one error model: every answer outside 2xx is this."""

    error: ErrorDetail
