"""What one client of the shim has open: its requests, the batches they came in, its listen streams.

Owns how the answers to a batch are kept together. Never does I/O.
Source: JSON-RPC 2.0, Batch; MCP 2025-03-26, Base protocol, Batching; MCP 2026-07-28, Subscriptions.
"""

from dataclasses import dataclass, field

from coffer_cli.shim_effects import ToClient
from coffer_cli.shim_lines import Look


@dataclass(slots=True)
class Batch:
    """The answers to one JSON-RPC batch, which go to the client together."""

    missing: int
    answers: list[bytes] = field(default_factory=list)

    def together(self) -> ToClient:
        """All of them, as one line."""
        return ToClient(b"[" + b",".join(self.answers) + b"]")


@dataclass(slots=True)
class Request:
    """A message of the client and, where it came in one, its batch."""

    line: bytes
    seen: Look
    batch: Batch | None = None


@dataclass(slots=True)
class Listen:
    """An open listen stream: whether the client has its acknowledgement, and whether a new daemon was asked again."""

    line: bytes
    acked: bool = False
    resent: bool = False


@dataclass(slots=True)
class Waiting:
    """A request for which no daemon is there yet, and until when it waits."""

    request: Request
    deadline: float
