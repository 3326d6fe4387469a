"""Where the frames of a worker go.

Owns the shape of the way out alone: ``link`` is it, and ``discretion`` stands in front of it. Never sends.
"""

from typing import Any, Protocol


class Outlet(Protocol):
    """Where frames to the supervisor go."""

    def send(self, frame: Any, payload: bytes = b"") -> None:
        """Queue one bulk frame with its payload part."""
