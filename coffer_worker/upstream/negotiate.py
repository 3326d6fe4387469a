"""Which era and revision a connection speaks: ``server/discover`` first, ``initialize`` where that means nothing.

Owns the handshake of one connection, second processes included where an upstream needs a fresh one. Never keeps a
verdict (the caller does) and never retries a failure. Source: MCP 2026-07-28, Versioning and Discovery; Lifecycle.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeVar

import msgspec

from coffer_common import errors, protocol
from coffer_common.errors import Reason
from coffer_common.resources import Limits
from coffer_worker.core import bridge, http_rules, splice
from coffer_worker.core.translate import Hop
from coffer_worker.upstream import handshake
from coffer_worker.upstream.connection import Connection, Problem, Unanswered, UpstreamError

PROBE_SECONDS: Final = 5.0
_CLOSE_SECONDS: Final = 2.0
_PROMPT: Final = re.compile(r"(?i)\(y(/n)?\)|\[y/n\]|proceed\?|press any key|password:")

T = TypeVar("T")
Start = Callable[[], Awaitable[Connection]]


class StartFailed(Exception):
    """A connection could not be made. ``answered``: the code with which a living upstream refused; ``stderr``: its
    last lines; ``retry_after``: the seconds it asked for; ``verdict``: whether this says anything about its era."""

    def __init__(
        self,
        reason: Reason,
        message: str,
        *,
        stderr: tuple[str, ...] = (),
        answered: int | None = None,
        retry_after: float | None = None,
        verdict: bool = True,
    ) -> None:
        super().__init__(message)
        self.reason, self.message, self.stderr, self.answered = reason, message, stderr, answered
        self.retry_after, self.verdict = retry_after, verdict


@dataclass(frozen=True, slots=True)
class Want:
    """What to negotiate. ``era`` "" finds out; ``revision`` is for the handshake; ``capabilities`` what to declare;
    ``project`` the directory to start in (empty: the configured one)."""

    era: Literal["", "legacy", "modern"]
    revision: str
    capabilities: dict[str, Any] = field(default_factory=lambda: bridge.declared(None))
    project: str = ""


async def outcome(server: str, opening: Awaitable[Connection]) -> Connection:
    """What comes of opening a connection. Raises StartFailed, also for a fault of Coffer's own: whoever waits for the
    connection hears of its end."""
    try:
        return await opening
    except StartFailed:
        raise
    except Exception as error:
        text = f"Coffer itself failed in starting upstream {server!r}: {type(error).__name__}"
        asyncio.get_running_loop().call_exception_handler({"message": text, "exception": error})
        raise StartFailed(errors.INTERNAL, text, verdict=False) from error


class Negotiation:
    """One connection being made. ``start`` begins a fresh transport; each has ``limits.start_seconds``.

    ``over_http``: silence and failures of the transport say nothing about the era, and a fresh transport helps nobody.
    """

    def __init__(
        self, server: str, start: Start, client_info: bytes, limits: Limits, *, over_http: bool = False
    ) -> None:
        self._server = server
        self._start = start
        self._client_info = client_info
        self._limits = limits
        self._over_http = over_http
        self._connection: Connection | None = None
        self._probe: asyncio.Future[bytes] | None = None
        self._probe_id = 0

    async def run(self, want: Want) -> Connection:
        """A connection ready for use. Raises StartFailed; then nothing of it is left running."""
        try:
            return await self._run(want)
        except BaseException as error:
            reason = "it did not start" if isinstance(error, Exception) else "it is no longer wanted"
            await self._drop(reason)
            raise

    async def _run(self, want: Want) -> Connection:
        if want.era != "legacy":
            connection = await self._limited(self._try_modern(want))
            if connection is not None:
                return connection
            if want.era == "modern":
                raise StartFailed(
                    errors.START_FAILED, f"Upstream {self._server!r} no longer speaks {protocol.LATEST_MODERN}"
                )
        if self._connection is None or self._connection.gone is not None:
            await self._fresh()
        try:
            return await self._limited(self._initialize(want))
        except StartFailed as error:
            if error.answered is None or self._probe is None or self._over_http:
                raise
            late = await self._limited(self._late_modern(want, error.answered))
            if late is not None:
                return late
        # It took the probe for the beginning of a session: only a fresh process can be asked again.
        await self._fresh()
        return await self._limited(self._initialize(want))

    # ---- the transport

    async def _fresh(self) -> Connection:
        await self._drop("a fresh one is needed for the older handshake")
        self._probe = None
        self._connection = await self._start()
        return self._connection

    async def _drop(self, reason: str) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and connection.pipe is not None:
            await connection.pipe.close(_CLOSE_SECONDS, reason)

    async def _limited(self, step: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(self._limits.start_seconds):
                return await step
        except TimeoutError:
            raise self._timed_out() from None

    def _timed_out(self) -> StartFailed:
        pipe = self._connection.pipe if self._connection is not None else None
        output = pipe.last_output() if pipe is not None else ()
        text = f"Upstream {self._server!r} did not answer within {self._limits.start_seconds:g} s, its start limit"
        if output:
            text += f". Its last output: {' | '.join(output)}"
        if any(_PROMPT.search(line) for line in output):
            text += ". It seems to wait for a keypress: give its command a non-interactive flag (npx: -y)"
        return StartFailed(errors.START_LIMIT, text, stderr=output)

    # ---- modern

    async def _try_modern(self, want: Want) -> Connection | None:
        """The connection where it is modern; None where it is legacy, silent, or died of the question."""
        connection = await self._fresh()
        try:
            return self._modern(want, await self._discover(connection, want))
        except UpstreamError as error:
            if error.code == protocol.UNSUPPORTED_VERSION and protocol.LATEST_MODERN in _supported(error.raw):
                return await self._discovered_again(connection, want)
            return self._modern_by_error(want, error)
        except Unanswered as error:
            if self._over_http and not http_rules.means_legacy(error.problem.status):
                raise self._no_verdict(error.problem) from None
            return None
        except TimeoutError:
            return None

    async def _discover(self, connection: Connection, want: Want) -> bytes:
        """The answer to ``server/discover``. Raises UpstreamError, Unanswered, TimeoutError for silence."""
        hop = self._hop("modern", protocol.LATEST_MODERN, want)
        self._probe_id, self._probe = connection.begin("server/discover", hop.params())
        self._probe.add_done_callback(_seen)
        patience = None if self._over_http else min(PROBE_SECONDS, self._limits.start_seconds / 2)
        async with asyncio.timeout(patience):
            return await asyncio.shield(self._probe)

    async def _discovered_again(self, connection: Connection, want: Want) -> Connection | None:
        """The upstream refused our revision, and named the same one as its own: it is asked once more."""
        try:
            return self._modern(want, await self._discover(connection, want))
        except UpstreamError as error:
            raise self._no_common(str(error)) from None
        except (Unanswered, TimeoutError) as error:
            text = f"Upstream {self._server!r} did not answer server/discover: {error}"
            raise StartFailed(errors.START_FAILED, text, verdict=False) from None

    def _no_verdict(self, problem: Problem) -> StartFailed:
        return StartFailed(problem.reason, problem.message, retry_after=problem.retry_after, verdict=False)

    def _modern_by_error(self, want: Want, error: UpstreamError) -> Connection | None:
        if error.code not in protocol.MODERN_ERRORS:
            return None
        if error.code == protocol.UNSUPPORTED_VERSION:
            supported = _supported(error.raw)
            if any(version in protocol.LEGACY_REVISIONS for version in supported):
                return None
            raise self._no_common(", ".join(supported) or "others")
        return self._modern(want, None)

    def _modern(self, want: Want, result: bytes | None) -> Connection | None:
        """The connection, settled as ``result`` says (None: only an error told the era); None where it is legacy."""
        connection = self._connection
        assert connection is not None
        try:
            found = splice.members(result) if result is not None else {}
            versions = splice.items(found["supportedVersions"]) if "supportedVersions" in found else []
        except ValueError:
            return None
        if "supportedVersions" not in found and result is not None:
            return None  # an answer, but not to this question: servers exist that answer anything with a result
        offered = [text for text in map(splice.text, versions) if text is not None]
        if "supportedVersions" in found and protocol.LATEST_MODERN not in offered:
            if any(version in protocol.LEGACY_REVISIONS for version in offered):
                return None
            raise self._no_common(", ".join(offered) or "none")
        meta = splice.members(found["_meta"]) if splice.is_object(found.get("_meta")) else {}
        info = found.get("serverInfo", meta.get(protocol.META_SERVER_INFO, b"{}"))
        self._settle(connection, self._hop("modern", protocol.LATEST_MODERN, want), found, bytes(info))
        return connection

    async def _late_modern(self, want: Want, refusal: int) -> Connection | None:
        """The connection where the probe is answered well after our patience: a modern server that was slow to start.

        It refuses the older handshake in words of the modern era, perhaps before it answers the probe."""
        probe = self._probe
        if probe is None or (not probe.done() and refusal not in protocol.MODERN_ERRORS):
            return None
        try:
            return self._modern(want, await asyncio.shield(probe))
        except (UpstreamError, Unanswered):
            return None

    # ---- legacy

    async def _initialize(self, want: Want) -> Connection:
        connection = self._connection
        assert connection is not None
        hop = self._hop("legacy", want.revision, want)
        params = splice.join(
            {
                "protocolVersion": msgspec.json.encode(want.revision),
                "capabilities": hop.capabilities,
                "clientInfo": self._client_info,
            }
        )
        try:
            found = splice.members(await connection.ask("initialize", params, cancel=False))
            agreed = splice.text(found.get("protocolVersion"))
        except UpstreamError as error:
            raise StartFailed(
                errors.START_FAILED, f"Upstream {self._server!r} refused initialize with {error}", answered=error.code
            ) from None
        except Unanswered as error:
            if self._over_http:
                raise self._unanswered(error.problem) from None
            stderr = connection.gone.stderr if connection.gone is not None else ()
            what = error.problem.message.removeprefix(f"Upstream {self._server!r} ")
            text = f"Upstream {self._server!r} did not start: it {what}"
            raise StartFailed(errors.START_FAILED, text, stderr=stderr) from None
        except ValueError as error:
            raise StartFailed(
                errors.START_FAILED, f"Upstream {self._server!r} answered initialize with what is {error}"
            ) from None
        if agreed not in protocol.LEGACY_REVISIONS:
            raise self._no_common(agreed or "none", asked=want.revision)
        if self._probe is not None:
            connection.forget(self._probe_id)
            self._probe.cancel()
        connection.notify("notifications/initialized")
        self._settle(connection, self._hop("legacy", agreed, want), found, bytes(found.get("serverInfo", b"{}")))
        return connection

    @staticmethod
    def _unanswered(problem: Problem) -> StartFailed:
        refused = http_rules.means_legacy(problem.status) and problem.status >= 400
        return StartFailed(
            problem.reason,
            problem.message,
            answered=problem.status if refused else None,
            retry_after=problem.retry_after,
            verdict=refused,
        )

    # ---- both

    def _hop(self, era: protocol.Era, revision: str, want: Want) -> Hop:
        return Hop(era, revision, self._client_info, msgspec.json.encode(want.capabilities))

    @staticmethod
    def _settle(connection: Connection, hop: Hop, found: dict[str, splice.Slice], server_info: bytes) -> None:
        connection.hop = hop
        connection.server_info = server_info
        capabilities = found.get("capabilities")
        connection.capabilities = bytes(capabilities) if splice.is_object(capabilities) and capabilities else b"{}"
        connection.instructions = splice.text(found.get("instructions")) or ""
        connection.deviations = handshake.deviations(hop.era, splice.join(found)) if found else ""
        connection.negotiated = True

    def _no_common(self, theirs: str, asked: str = protocol.LATEST_MODERN) -> StartFailed:
        return StartFailed(
            errors.START_FAILED,
            f"Upstream {self._server!r} and Coffer have no protocol revision in common: Coffer asked for {asked}, the "
            f"upstream speaks {theirs}",
        )


def _seen(future: "asyncio.Future[bytes]") -> None:
    """A probe that nobody waits for any more may fail in silence."""
    if not future.cancelled():
        future.exception()


def _supported(raw_error: bytes) -> list[str]:
    try:
        data = splice.members(splice.members(raw_error).get("data", b"{}"))
        return [text for text in map(splice.text, splice.items(data.get("supported", b"[]"))) if text is not None]
    except ValueError:
        return []
