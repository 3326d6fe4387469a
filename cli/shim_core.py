"""What the shim decides: which line goes where, and what a daemon that comes and goes means for the client.

Owns the state of one client's stay: the link to the daemon, requests in flight, requests that wait for a daemon,
the client's handshake, its subscriptions and the daemon's asks. Events come in with the time, effects go out. Never
does I/O, reads a clock, or decodes params or results beyond the members named here.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Final, Literal

import msgspec

from coffer_cli.shim_effects import Attach, Detach, Effect, Exit, Log, ToClient, ToDaemon, Why
from coffer_cli.shim_lines import Key, Look, Malformed, batch, key_of, look, member
from coffer_cli.shim_requests import Batch, Listen, Request, Waiting
from coffer_cli.shim_session import Session, acknowledged, changes
from coffer_common import errors, jsonrpc, protocol, shimproto, version

WAIT_SECONDS: Final = 60.0
"""How long a request waits for a daemon."""
DRAIN_SECONDS: Final = 10.0
"""How long answers may take after the client closed our stdin."""
RETRY_SECONDS: Final = 5.0
"""How long after a failed start the next request may try another one."""
QUEUE_BYTES: Final = 8 * 1024 * 1024
"""Beyond this many waiting bytes the client is not read."""

Link = Literal["attaching", "reopening", "open", "away", "looking"]

_STOPPED: Final = "the Coffer daemon was stopped; start it again with: coffer daemon start"
_FORBIDDEN: Final = "the Coffer daemon is gone, and --no-spawn forbids to start one; run: coffer daemon start"


@dataclass(slots=True)
class Core:
    """One client's stay. Feed it events; carry out the effects in their order."""

    spawn: bool = True
    link: Link = "attaching"
    ever_attached: bool = False
    _goodbye: str = ""
    _away: str = ""
    _lack: errors.Reason = errors.DAEMON_ABSENT
    _retry_at: float | None = None
    _drain_until: float | None = None
    _refused_any: bool = False
    _inflight: dict[Key, Request] = field(default_factory=dict)
    _queue: deque[Waiting] = field(default_factory=deque)
    _queued_bytes: int = 0
    _listens: dict[Key, Listen] = field(default_factory=dict)
    _asks: dict[Key, bytes] = field(default_factory=dict)
    _session: Session | None = None

    # -- the client ---------------------------------------------------------------------------------------------

    def start(self) -> list[Effect]:
        """The first effects."""
        return [Attach("start")]

    @property
    def reads_client(self) -> bool:
        """Whether the client's next line may be read."""
        return self._queued_bytes < QUEUE_BYTES

    def client_line(self, line: bytes, now: float) -> list[Effect]:
        """One line of the client, without its end."""
        try:
            if line[:1] == b"[":
                return self._client_batch(line, now)
            return self._client_message(Request(line, look(line)), now)
        except Malformed as error:
            return [_error(error.code, str(error))]

    def client_oversize(self, limit: int) -> list[Effect]:
        """A line of the client was longer than ``limit`` bytes and has been dropped."""
        return [_error(protocol.INVALID_REQUEST, f"the line is longer than {limit} bytes; it was dropped")]

    def client_end(self, now: float) -> list[Effect]:
        """The client closed our stdin: what it asked is still answered, within ``DRAIN_SECONDS``."""
        self._drain_until = now + DRAIN_SECONDS
        return self._drained()

    def _client_batch(self, line: bytes, now: float) -> list[Effect]:
        items = batch(line)
        if self._session is None or self._session.revision != protocol.BATCH_REVISION:
            text = f"JSON-RPC batches belong to revision {protocol.BATCH_REVISION}; send one message a line"
            return [_error(protocol.INVALID_REQUEST, text)]
        together = Batch(sum(seen.kind not in ("notification", "response") for _, seen in items))
        effects: list[Effect] = []
        for item, seen in items:
            effects += self._client_message(Request(jsonrpc.one_line(item), seen, together), now)
        return effects

    def _client_message(self, request: Request, now: float) -> list[Effect]:
        seen = request.seen
        if seen.kind == "control":
            return self._malformed(request, 'a message of the client may not have a member "coffer"')
        if seen.kind == "other":
            return self._malformed(request, "neither a request nor a response: no method")
        if seen.kind == "request" and seen.id is None:
            return self._malformed(request, "id must be a string or an integer")
        if seen.kind == "response":
            if seen.id is None or self._asks.pop(seen.id, None) is None:
                return [Log("dropped the client's answer to a question that is no longer open")]
            return [ToDaemon(request.line)]
        if seen.kind == "notification":
            return self._client_notice(request, now)
        return self._forward(request, now)

    def _client_notice(self, request: Request, now: float) -> list[Effect]:
        seen = request.seen
        if seen.method == "notifications/initialized" and self._session is not None:
            self._session.initialized = request.line
            if self._session.answered and self.link != "open":
                return []  # part of the handshake that is done anew with the next daemon
        if seen.method == "notifications/cancelled":
            key = key_of(member(seen.params, "requestId"))
            return [] if key is None else self._cancel(key, request)
        return [] if self.link == "away" else self._forward(request, now)

    def _cancel(self, key: Key, notice: Request) -> list[Effect]:
        """Forgets a request that its client gave up; the daemon hears of it if it has heard of the request."""
        self._listens.pop(key, None)
        given_up = self._inflight.pop(key, None)
        effects: list[Effect] = [ToDaemon(notice.line)] if self.link == "open" else []
        for waiting in self._queue:
            if waiting.request.seen.kind == "request" and waiting.request.seen.id == key:
                given_up = waiting.request
                self._queue.remove(waiting)
                self._queued_bytes -= len(waiting.request.line)
                break
        together = given_up.batch if given_up is not None else None
        if together is not None:
            together.missing -= 1
            if together.answers and len(together.answers) == together.missing:
                effects.append(together.together())
        return effects

    def _forward(self, request: Request, now: float) -> list[Effect]:
        if self.link == "open":
            return self._send(request)
        effects: list[Effect] = []
        if self.link == "away":
            if self._retry_at is not None and now < self._retry_at:
                return self._refuse(request)
            # Somebody may have started one since the last look of the watch.
            self.link = "looking" if self._retry_at is None else "attaching"
            effects.append(Attach("look" if self._retry_at is None else "start"))
        self._queue.append(Waiting(request, now + WAIT_SECONDS))
        self._queued_bytes += len(request.line)
        return effects

    def _send(self, request: Request) -> list[Effect]:
        seen = request.seen
        if seen.kind == "request" and seen.id is not None:
            if seen.id in self._inflight:  # the daemon's two answers could not be told apart
                return self._malformed(request, "a request with this id is still open")
            self._inflight[seen.id] = request
            if seen.method == "subscriptions/listen":
                self._listens[seen.id] = Listen(request.line)
            elif seen.method == "initialize":
                self._session = Session(seen.params)
        elif seen.method == "notifications/initialized" and self._session is not None:
            self._session.initialized = request.line  # a client may have sent it before it had our answer
        return [ToDaemon(request.line)]

    def _refuse(self, request: Request) -> list[Effect]:
        """An error for a request that no daemon will see."""
        if request.seen.kind != "request":
            return []
        self._refused_any = True
        return self._fail(request, self._lack, self._away)

    def _fail(self, request: Request, reason: errors.Reason, message: str) -> list[Effect]:
        answer = jsonrpc.error_response(request.seen.raw_id, errors.error_object(reason, message))
        return self._to_client(request, answer)

    def _malformed(self, request: Request, message: str) -> list[Effect]:
        """A refusal of what no daemon need see."""
        raw_id = b"null" if request.seen.id is None else request.seen.raw_id
        return self._to_client(request, _error(protocol.INVALID_REQUEST, message, raw_id).line)

    def _to_client(self, request: Request, answer: bytes) -> list[Effect]:
        """The answer to a request, by itself or, in the end, with those of its batch."""
        together = request.batch
        if together is None:
            return [ToClient(answer)]
        together.answers.append(answer)
        if len(together.answers) < together.missing:
            return []
        return [together.together()]

    # -- the daemon ---------------------------------------------------------------------------------------------

    def daemon_line(self, line: bytes, now: float) -> list[Effect]:
        """One line of the daemon, without its end."""
        try:
            seen = look(line)
        except Malformed as error:
            return [Log(f"dropped a line of the daemon that is no message: {error}")]
        if seen.kind == "control":
            return self._control(line, now)
        if seen.kind == "response":
            return [*self._response(line, seen), *self._drained()]
        if seen.kind == "request" and seen.id is not None:
            self._asks[seen.id] = seen.raw_id
        elif seen.kind == "notification":
            return self._daemon_notice(line, seen)
        return [ToClient(line)]

    def attached(self, daemon_version: str) -> list[Effect]:
        """Connected and welcomed. ``daemon_version`` is the daemon's release."""
        effects: list[Effect] = []
        differ = f"this shim is Coffer {version.VERSION}, the running daemon is"
        if version.newer(version.VERSION, daemon_version):
            effects.append(Log(f"{differ} older ({daemon_version}); to update it: coffer daemon restart"))
        elif version.newer(daemon_version, version.VERSION):
            effects.append(Log(f"{differ} newer ({daemon_version}); to update the shim, restart the MCP client"))
        self.ever_attached, self._goodbye = True, ""
        if self._session is not None and self._session.answered:
            self.link = "reopening"
            return [*effects, ToDaemon(self._session.reopen())]
        return [*effects, *self._opened(), *self._drained()]

    def attach_failed(self, message: str, now: float, why: Why = "") -> list[Effect]:
        """No daemon could be reached."""
        if why == "not_running" and not self.ever_attached:
            return [Log(message), Exit(3)]
        if self.link == "looking" and why != "no_group":
            self.link = "away"
            return [*self._refuse_queue(), Attach("watch"), *self._drained()]
        self.link, self._away = "away", message
        self._lack = errors.UNKNOWN_GROUP if why == "no_group" else errors.DAEMON_ABSENT
        self._retry_at = now + RETRY_SECONDS if self.spawn else None
        return [Log(message), *self._refuse_queue(), Attach("watch"), *self._drained()]

    def daemon_lost(self, now: float) -> list[Effect]:
        """The connection ended, or was not to be used further."""
        effects: list[Effect] = [Detach(), *self._lose_inflight(now)]
        for raw_id in self._asks.values():
            params = b'{"requestId":' + raw_id + b',"reason":"the Coffer daemon that asked is gone"}'
            effects.append(ToClient(jsonrpc.notification("notifications/cancelled", params)))
        self._asks.clear()
        self._lack = errors.DAEMON_ABSENT
        if self._session is not None:
            self._session.closed()
        for listen in self._listens.values():
            listen.resent = True
        stopped, restarting = self._goodbye == "stopped", self._goodbye == "restarting"
        if stopped or not self.spawn:
            self.link, self._retry_at, self._away = "away", None, _STOPPED if stopped else _FORBIDDEN
            effects += [Log(self._away), *self._refuse_queue(), Attach("watch")]
        else:
            self.link = "attaching"
            effects.append(Log(f"the Coffer daemon {'restarts' if restarting else 'is gone; looking for another'}"))
            effects.append(Attach("restart" if restarting else "start"))
        return [*effects, *self._drained()]

    def _control(self, line: bytes, now: float) -> list[Effect]:
        try:
            control = shimproto.decode(line)
        except msgspec.DecodeError as error:
            return [Log(f"dropped a line of the daemon that this shim does not know: {error}")]
        if not isinstance(control, shimproto.Goodbye):
            return [Log("dropped a greeting of the daemon in the middle of the conversation")]
        self._goodbye = control.reason
        return self.daemon_lost(now)

    def _response(self, line: bytes, seen: Look) -> list[Effect]:
        if self._session is not None and self._session.owns(seen.id):
            return self._reopened(self._session, seen)
        request = self._inflight.pop(seen.id, None) if seen.id is not None else None
        if request is None or seen.id is None:
            return [ToClient(line)]
        self._listens.pop(seen.id, None)
        if seen.result and self._session is not None:
            self._session.note(request.seen.method, request.seen.params, seen.result)
        return self._to_client(request, line)

    def _reopened(self, session: Session, seen: Look) -> list[Effect]:
        """An answer to the shim itself: to the handshake that it repeated, or to what it set up afterwards."""
        if not session.handled(seen.id):
            return []
        if not seen.result:
            text = "the new daemon refused the client's handshake; restart the MCP client"
            return [Log(text), *self._opened()]
        effects: list[Effect] = [ToDaemon(line) for line in session.resume()]
        effects += self._opened()
        if session.initialized:
            effects += [ToClient(line) for line in session.list_changes()]
        return effects

    def _daemon_notice(self, line: bytes, seen: Look) -> list[Effect]:
        if seen.method == "notifications/cancelled":
            key = key_of(member(seen.params, "requestId"))
            if key is not None:
                self._asks.pop(key, None)
                if self._listens.pop(key, None) is not None:
                    self._inflight.pop(key, None)
        if seen.method != "notifications/subscriptions/acknowledged":
            return [ToClient(line)]
        raw_id = bytes(member(seen.params, "_meta", protocol.META_SUBSCRIPTION_ID))
        key = key_of(raw_id)
        listen = self._listens.get(key) if key is not None else None
        if listen is None or not (listen.acked and listen.resent):
            if listen is not None:
                listen.acked = True
            return [ToClient(line)]
        return [ToClient(one) for one in changes(raw_id, acknowledged(seen.params))]

    def _opened(self) -> list[Effect]:
        self.link = "open"
        effects: list[Effect] = [ToDaemon(listen.line) for listen in self._listens.values()]
        queued, self._queue, self._queued_bytes = self._queue, deque(), 0
        for waiting in queued:
            effects += self._send(waiting.request)
        return effects

    def _lose_inflight(self, now: float) -> list[Effect]:
        """An error for each lost call. An unanswered ``initialize`` did nothing yet: it is asked again."""
        effects: list[Effect] = []
        how = {"stopped": "was stopped", "restarting": "restarts"}.get(self._goodbye, "went away")
        lost = [request for key, request in self._inflight.items() if key not in self._listens]
        self._inflight = {key: request for key, request in self._inflight.items() if key in self._listens}
        for request in lost:
            if request.seen.method == "initialize":
                self._queue.appendleft(Waiting(request, now + WAIT_SECONDS))
                self._queued_bytes += len(request.line)
            else:
                what = f"before it answered {request.seen.method}; that may have been carried out"
                effects += self._fail(request, errors.DAEMON_LOST, f"the Coffer daemon {how} {what}")
        return effects

    def _refuse_queue(self) -> list[Effect]:
        queued, self._queue, self._queued_bytes = self._queue, deque(), 0
        return [effect for waiting in queued for effect in self._refuse(waiting.request)]

    # -- time ---------------------------------------------------------------------------------------------------

    @property
    def deadline(self) -> float | None:
        """When ``tick`` has something to do next."""
        times = [waiting.deadline for waiting in self._queue]
        if self._drain_until is not None:
            times.append(self._drain_until)
        return min(times, default=None)

    def tick(self, now: float) -> list[Effect]:
        """What is due at ``now``."""
        effects: list[Effect] = []
        due = [waiting for waiting in self._queue if waiting.deadline <= now]
        for waiting in due:
            self._queue.remove(waiting)
            self._queued_bytes -= len(waiting.request.line)
            self._lack = errors.DAEMON_ABSENT
            self._away = f"no Coffer daemon was ready within {WAIT_SECONDS:.0f} s; see: coffer daemon status"
            effects += self._refuse(waiting.request)
        if self._drain_until is None or now < self._drain_until:
            return [*effects, *self._drained()]
        for key, request in self._inflight.items():
            if key not in self._listens:
                text = f"{request.seen.method} was not answered within {DRAIN_SECONDS:.0f} s of the end of input"
                effects += self._fail(request, errors.CANCELLED, text)
        self._away = "the input ended before a Coffer daemon was ready"
        effects += self._refuse_queue()
        return [*effects, Exit(self._exit_code())]

    def _drained(self) -> list[Effect]:
        waits = self._drain_until is None or self._queue or any(key not in self._listens for key in self._inflight)
        return [] if waits else [Exit(self._exit_code())]

    def _exit_code(self) -> int:
        never = 4 if self._lack is errors.UNKNOWN_GROUP else 3
        return never if self._refused_any and not self.ever_attached else 0


def _error(code: int, message: str, raw_id: bytes = b"null") -> ToClient:
    """A refusal of the transport's."""
    return ToClient(jsonrpc.error_response(raw_id, errors.error_object(errors.MALFORMED[code], message)))
