"""A call on behalf of an operator: no client, no stream, one outcome.

Owns the request that management makes of the router, the sink that waits for its outcome, and how long. Never
routes or sends.
"""

import asyncio
import secrets
from typing import Final, Protocol

import msgspec

from coffer_common import errors, frames, protocol
from coffer_supervisor.core.calls import LOCAL_PRINCIPAL, CallRequest, CallSink, Failure, Principal, Scope, failure
from coffer_supervisor.core.pieces import Buffer

SESSION: Final = "management"
"""One for all, so that a second call finds the connection that the first one opened."""


def management_request(server: str, tool: str, arguments: bytes, client: str, *, modern: bool) -> CallRequest:
    """A tools/call under the upstream's own name, in the era that the upstream itself prefers: what speaks both would
    otherwise be started once more for it."""
    caller = frames.Caller(
        session=SESSION,
        principal=LOCAL_PRINCIPAL,
        endpoint=f"/servers/{server}/mcp",
        naming="raw",
        revision=protocol.LATEST_MODERN if modern else protocol.LATEST_LEGACY,
        wire="shim",
    )
    params = b'{"name":' + msgspec.json.encode(tool) + b',"arguments":' + arguments + b"}"
    principal, scope = Principal(LOCAL_PRINCIPAL, client), Scope(caller.endpoint, server=server)
    return CallRequest(
        caller, principal, scope, "tools/call", params, trace_id=secrets.token_hex(8), client_name=client
    )


class Outcome:
    """A sink for one who waits for the end and nothing else: (True, result) or (False, error object)."""

    def __init__(self, future: "asyncio.Future[tuple[bool, bytes]]") -> None:
        self.future = future

    def progress(self, params: bytes) -> None:
        """Not shown."""

    def notify(self, method: str, params: bytes) -> None:
        """Not shown."""

    def ask(self, ask: int, method: str, params: bytes) -> None:
        """Nobody can be asked: no capability was declared, so no ask is lawful."""

    def pause(self) -> None:
        """Nobody waits on a stream."""

    def withdraw(self, ask: int, reason: str) -> None:
        """See ``ask``."""

    def release(self, ask: int) -> None:
        """See ``ask``."""

    def adopt(self, ask: int) -> None:
        """See ``ask``."""

    def reply(self, result: Buffer) -> None:
        """It ended well."""
        if not self.future.done():
            self.future.set_result((True, bytes(result)))

    def fail(self, failure: Failure) -> None:
        """It did not."""
        if not self.future.done():
            self.future.set_result((False, failure.error))


class Calling(Protocol):
    """What it takes of a router."""

    def start_call(self, request: CallRequest, sink: CallSink) -> int:
        """Begin a call; its number."""

    def cancel(self, corr: int, reason: str) -> None:
        """Nobody wants its answer any more."""


async def outcome_of(router: Calling, request: CallRequest, timeout: float) -> tuple[bool, bytes]:
    """Make a call and wait ``timeout`` seconds for its end: (True, result) or (False, JSON-RPC error object)."""
    outcome = Outcome(asyncio.get_running_loop().create_future())
    corr = router.start_call(request, outcome)
    try:
        async with asyncio.timeout(timeout):
            return await outcome.future
    except TimeoutError:
        router.cancel(corr, "the caller's time was up")
        server = request.scope.server
        text = f"server '{server}' did not answer within {timeout:g} s"
        return False, failure(errors.TOTAL_LIMIT, text, "legacy", server=server).error
    except asyncio.CancelledError:
        router.cancel(corr, "the caller left")
        raise
