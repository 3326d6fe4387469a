"""What is written down of a call that has ended: one row, and one log line where somebody would look for it.

Owns the turning of a call into both. Never blocks: the row goes into a queue. Arguments and results are never
written anywhere.
"""

import logging
from datetime import timedelta
from typing import Final

from coffer_common import errors
from coffer_supervisor.core.calls import Failure
from coffer_supervisor.core.tally import Tally
from coffer_supervisor.pending import TYPE_OF, Pending
from coffer_supervisor.store.invocations import Invocation, InvocationLog, Status
from coffer_supervisor.upstream import utc_now

_log: Final = logging.getLogger("coffer.calls")
_DENIED: Final = frozenset({errors.DENIED.name, errors.CAPABILITY_DISABLED.name, errors.SERVER_DISABLED.name})
_TIMEOUT: Final = frozenset({errors.IDLE_LIMIT.name, errors.TOTAL_LIMIT.name, errors.START_LIMIT.name})


class Recorder:
    """Takes each call once, at its end."""

    def __init__(self, invocations: InvocationLog, tally: Tally) -> None:
        self._record = invocations.record
        self._count = tally.count

    def failed(self, call: Pending, found: Failure, now: float) -> None:
        """It ended with an error."""
        status: Status = "error"
        if found.reason in _DENIED:
            status = "denied"
        elif found.reason in _TIMEOUT:
            status = "timeout"
        elif found.reason == errors.CANCELLED.name:
            status = "cancelled"
        self.ended(call, status, found.message, now)

    def ended(self, call: Pending, status: Status, error: str | None, now: float) -> None:
        """It ended; ``now`` is monotonic."""
        request = call.request
        type_ = TYPE_OF.get(request.method)
        server = call.server or call.server_hint
        seconds = now - call.started
        client = request.shown_client
        if type_ is not None and server:
            self._count(server, type_, status, seconds)
            self._record(
                Invocation(
                    when=utc_now() - timedelta(seconds=seconds),
                    server=server,
                    type=type_,
                    key=call.key,
                    duration_ms=seconds * 1000,
                    status=status,
                    error=error,
                    session=call.session,
                    client=client,
                    trace_id=request.trace_id or None,
                )
            )
        level = logging.DEBUG if status in ("ok", "cancelled") else logging.INFO
        if _log.isEnabledFor(level):
            facts = {"server": server, "key": call.key, "status": status, "ms": round(seconds * 1000, 2)}
            more = {"client": client, "session": call.session, "trace_id": request.trace_id, "error": error}
            _log.log(level, request.method, extra=facts | more)
