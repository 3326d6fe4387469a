"""What the shim decides: which line goes where, and what a daemon that comes and goes means for the client.

Owns the state of one client's stay: the link to the daemon, requests in flight, requests that wait for a daemon,
the client's handshake, its subscriptions and the daemon's asks. Events come in with the time, effects go out. Never
does I/O, reads a clock, or decodes params or results beyond the members named here.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Final, Literal

import msgspec

from coffer_cli.shim_effects import Attach, Detach, Effect, Exit, Log, ToClient, ToDaemon
from coffer_cli.shim_lines import Key, Look, Malformed, key_of, look, member
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

Link = Literal["attaching", "reopening", "open", "away"]


@dataclass(slots=True)
class _Pending:
    raw_id: bytes
    method: str
    line: bytes
    params: msgspec.Raw


@dataclass(slots=True)
class _Listen:
    line: bytes
    acked: bool = False
    resent: bool = False


@dataclass(slots=True)
class _Waiting:
    line: bytes
    looks: list[Look]
    deadline: float


@dataclass(slots=True)
class Core:
    """One client's stay. Feed it events; carry out the effects in their order."""

    spawn: bool = True
    link: Link = "attaching"
    ever_attached: bool = False
    _goodbye: str = ""
    _away: str = ""
    _retry_at: float | None = None
    _drain_until: float | None = None
    _failed_any: bool = False
    _inflight: dict[Key, _Pending] = field(default_factory=dict)
    _queue: deque[_Waiting] = field(default_factory=deque)
    _queued_bytes: int = 0
    _listens: dict[Key, _Listen] = field(default_factory=dict)
    _asks: dict[Key, bytes] = field(default_factory=dict)
    _session: Session | None = None

    # -- the client ---------------------------------------------------------------------------------------------

    def start(self) -> list[Effect]:
        """The first effects."""
        return [Attach("start")]

    @property
    def reads_client(self) -> bool:
        """Whether the client's next line may be read."""
        return self._queued_bytes < QUEUE_BYTES and self._drain_until is None

    def client_line(self, line: bytes, now: float) -> list[Effect]:
        """One line of the client, without its end."""
        try:
            looks = look(line)
        except Malformed as error:
            return [ToClient(jsonrpc.error_response(b"null", jsonrpc.error(error.code, str(error))))]
        if len(looks) > 1 or line[:1] == b"[":
            return self._forward(line, looks, now)
        seen = looks[0]
        if seen.kind == "response":
            return self._answer(line, seen)
        if seen.kind == "control":
            text = 'a message of the client may not have a member "coffer"'
            return [ToClient(jsonrpc.error_response(b"null", jsonrpc.error(protocol.INVALID_REQUEST, text)))]
        if seen.kind == "notification":
            return self._client_notice(line, seen, now)
        return self._forward(line, looks, now)

    def client_oversize(self, limit: int) -> list[Effect]:
        """A line of the client was longer than ``limit`` bytes and has been dropped."""
        error = jsonrpc.error(protocol.INVALID_REQUEST, f"the line is longer than {limit} bytes; it was dropped")
        return [ToClient(jsonrpc.error_response(b"null", error))]

    def client_end(self, now: float) -> list[Effect]:
        """The client closed our stdin: what it asked is still answered, within ``DRAIN_SECONDS``."""
        self._drain_until = now + DRAIN_SECONDS
        return self._drained()

    def _answer(self, line: bytes, seen: Look) -> list[Effect]:
        if seen.id is None or self._asks.pop(seen.id, None) is None:
            return [Log("dropped the client's answer to a question that is no longer open")]
        return [ToDaemon(line)]

    def _client_notice(self, line: bytes, seen: Look, now: float) -> list[Effect]:
        if seen.method == "notifications/initialized" and self._session is not None:
            self._session.initialized = line
            if self._session.answered and self.link != "open":
                return []  # part of the handshake that is done anew with the next daemon
        if seen.method == "notifications/cancelled":
            key = key_of(member(seen.params, "requestId"))
            if key is not None and self._cancel(key):
                return self._drained()
        return [] if self.link == "away" else self._forward(line, [seen], now)

    def _cancel(self, key: Key) -> bool:
        """Forgets a request that its client gave up. True: the daemon never heard of it."""
        self._listens.pop(key, None)
        self._inflight.pop(key, None)
        for waiting in self._queue:
            if len(waiting.looks) == 1 and waiting.looks[0].kind == "request" and waiting.looks[0].id == key:
                self._queue.remove(waiting)
                self._queued_bytes -= len(waiting.line)
                return True
        return False

    def _forward(self, line: bytes, looks: list[Look], now: float) -> list[Effect]:
        if self.link == "open":
            return self._send(line, looks)
        effects: list[Effect] = []
        if self.link == "away":
            if self._retry_at is None or now < self._retry_at:
                return self._refuse(looks)
            self.link = "attaching"
            effects.append(Attach("start"))
        self._queue.append(_Waiting(line, looks, now + WAIT_SECONDS))
        self._queued_bytes += len(line)
        return effects

    def _send(self, line: bytes, looks: list[Look]) -> list[Effect]:
        for seen in looks:
            if seen.kind != "request" or seen.id is None:
                continue
            if seen.method == "subscriptions/listen":
                self._listens[seen.id] = _Listen(line)
            elif seen.method == "initialize":
                self._session = Session(seen.params)
            self._inflight[seen.id] = _Pending(seen.raw_id, seen.method, line, seen.params)
        return [ToDaemon(line), *self._drained()]

    def _refuse(self, looks: list[Look]) -> list[Effect]:
        """Errors for requests that no daemon will see."""
        self._failed_any = True
        error = errors.error_object(errors.DAEMON_ABSENT, self._away)
        return [ToClient(jsonrpc.error_response(seen.raw_id, error)) for seen in looks if seen.kind == "request"]

    # -- the daemon ---------------------------------------------------------------------------------------------

    def daemon_line(self, line: bytes, now: float) -> list[Effect]:
        """One line of the daemon, without its end."""
        try:
            looks = look(line)
        except Malformed as error:
            return [Log(f"dropped a line of the daemon that is no message: {error}")]
        effects: list[Effect] = []
        passes = True
        for seen in looks:
            if seen.kind == "control":
                return self._control(line, now)
            if seen.kind == "response":
                passes = self._response(seen, effects, now)
            elif seen.kind == "request" and seen.id is not None:
                self._asks[seen.id] = seen.raw_id
            elif seen.kind == "notification":
                passes = self._daemon_notice(seen, effects)
        if passes:
            effects.insert(0, ToClient(line))
        return effects + self._drained()

    def attached(self, daemon_version: str, now: float) -> list[Effect]:
        """Connected and welcomed. ``daemon_version`` is the daemon's release."""
        effects: list[Effect] = []
        if version.newer(version.VERSION, daemon_version):
            effects.append(
                Log(
                    f"this shim is Coffer {version.VERSION}, the running daemon is older ({daemon_version}); "
                    f"to update it: coffer daemon restart"
                )
            )
        elif version.newer(daemon_version, version.VERSION):
            effects.append(
                Log(
                    f"this shim is Coffer {version.VERSION}, the running daemon is newer ({daemon_version}); "
                    f"restart the MCP client to update the shim"
                )
            )
        self.ever_attached, self._goodbye = True, ""
        if self._session is not None and self._session.answered:
            self.link = "reopening"
            return [*effects, ToDaemon(self._session.reopen())]
        return effects + self._opened()

    def attach_failed(self, message: str, now: float, *, not_running: bool = False) -> list[Effect]:
        """No daemon could be reached. ``not_running``: none runs, and none was to be started."""
        if not_running and not self.ever_attached:
            return [Log(message), Exit(3)]
        self.link, self._away = "away", message
        self._retry_at = now + RETRY_SECONDS if self.spawn else None
        return [Log(message), *self._refuse_queue(), Attach("watch"), *self._drained()]

    def daemon_lost(self, now: float) -> list[Effect]:
        """The connection ended, or was not to be used further."""
        effects: list[Effect] = [Detach()]
        again = self._lose_inflight(effects, now)
        for raw_id in self._asks.values():
            params = b'{"requestId":' + raw_id + b',"reason":"the Coffer daemon that asked is gone"}'
            effects.append(ToClient(jsonrpc.notification("notifications/cancelled", params)))
        self._asks.clear()
        if self._session is not None:
            self._session.closed()
        for listen in self._listens.values():
            listen.resent = True
        if again is not None:
            self._queue.appendleft(again)
            self._queued_bytes += len(again.line)
        stopped = self._goodbye == "stopped"
        if stopped or not self.spawn:
            self.link, self._retry_at = "away", None
            self._away = (
                "the Coffer daemon was stopped; start it again with: coffer daemon start"
                if stopped
                else "the Coffer daemon is gone, and --no-spawn forbids to start one: coffer daemon start"
            )
            effects += [Log(self._away), *self._refuse_queue(), Attach("watch")]
        else:
            self.link = "attaching"
            restarting = self._goodbye == "restarting"
            effects.append(Log(f"the Coffer daemon {'restarts' if restarting else 'is gone; looking for another'}"))
            effects.append(Attach("restart" if restarting else "start"))
        return effects + self._drained()

    def _control(self, line: bytes, now: float) -> list[Effect]:
        try:
            control = shimproto.decode(line)
        except msgspec.DecodeError as error:
            return [Log(f"dropped a line of the daemon that this shim does not know: {error}")]
        if not isinstance(control, shimproto.Goodbye):
            return [Log("dropped a greeting of the daemon in the middle of the conversation")]
        self._goodbye = control.reason
        return self.daemon_lost(now)

    def _response(self, seen: Look, effects: list[Effect], now: float) -> bool:
        """Notes an answer; False where it is one to the shim itself."""
        if self._session is not None and self._session.owns(seen.id):
            self._reopened(seen, effects)
            return False
        if seen.id is None:
            return True
        pending = self._inflight.pop(seen.id, None)
        self._listens.pop(seen.id, None)
        if pending is not None and seen.result and self._session is not None:
            self._session.note(pending.method, pending.line, pending.params, seen.result)
        return True

    def _reopened(self, seen: Look, effects: list[Effect]) -> None:
        session = self._session
        if session is None or not session.handled(seen.id):
            return  # the answer to something that was only repeated
        if not seen.result:
            effects.append(Log("the new daemon refused the client's handshake; restart the MCP client"))
        else:
            effects += [ToDaemon(line) for line in session.resume()]
        effects += self._opened()
        if seen.result and session.initialized:
            effects += [ToClient(line) for line in session.list_changes()]

    def _daemon_notice(self, seen: Look, effects: list[Effect]) -> bool:
        """Notes a notification; False where the client has had it already."""
        if seen.method == "notifications/cancelled":
            key = key_of(member(seen.params, "requestId"))
            if key is not None:
                self._asks.pop(key, None)
                if self._listens.pop(key, None) is not None:
                    self._inflight.pop(key, None)
            return True
        if seen.method != "notifications/subscriptions/acknowledged":
            return True
        raw_id = bytes(member(seen.params, "_meta", protocol.META_SUBSCRIPTION_ID))
        key = key_of(raw_id)
        listen = self._listens.get(key) if key is not None else None
        if listen is None:
            return True
        first, listen.acked = not listen.acked, True
        if not first and listen.resent:
            effects += [ToClient(line) for line in changes(raw_id, acknowledged(seen.params))]
        return first

    def _opened(self) -> list[Effect]:
        self.link = "open"
        effects: list[Effect] = [ToDaemon(listen.line) for listen in self._listens.values()]
        queued, self._queue, self._queued_bytes = self._queue, deque(), 0
        for waiting in queued:
            effects += self._send(waiting.line, waiting.looks)
        return effects

    def _lose_inflight(self, effects: list[Effect], now: float) -> _Waiting | None:
        """An error for each lost call. An unanswered ``initialize`` did nothing yet: it is asked again."""
        again: _Waiting | None = None
        how = {"stopped": "was stopped", "restarting": "restarts"}.get(self._goodbye, "went away")
        for key, pending in self._inflight.items():
            if key in self._listens:
                continue
            if pending.method == "initialize" and pending.line[:1] != b"[":
                again = _Waiting(pending.line, look(pending.line), now + WAIT_SECONDS)
                continue
            message = f"the Coffer daemon {how} before it answered {pending.method}; it may have been carried out"
            error = errors.error_object(errors.DAEMON_LOST, message)
            effects.append(ToClient(jsonrpc.error_response(pending.raw_id, error)))
        self._inflight = {key: pending for key, pending in self._inflight.items() if key in self._listens}
        return again

    def _refuse_queue(self) -> list[Effect]:
        queued, self._queue, self._queued_bytes = self._queue, deque(), 0
        return [effect for waiting in queued for effect in self._refuse(waiting.looks)]

    # -- time ---------------------------------------------------------------------------------------------------

    @property
    def deadline(self) -> float | None:
        """When ``tick`` has something to do next."""
        times = [self._queue[0].deadline] if self._queue else []
        if self._drain_until is not None:
            times.append(self._drain_until)
        return min(times, default=None)

    def tick(self, now: float) -> list[Effect]:
        """What is due at ``now``."""
        effects: list[Effect] = []
        while self._queue and self._queue[0].deadline <= now:
            waiting = self._queue.popleft()
            self._queued_bytes -= len(waiting.line)
            self._away = f"no Coffer daemon was ready within {WAIT_SECONDS:.0f} s; see: coffer daemon status"
            effects += self._refuse(waiting.looks)
        if self._drain_until is None or now < self._drain_until:
            return effects + self._drained()
        for key, pending in self._inflight.items():
            if key not in self._listens:
                text = f"{pending.method} was not answered within {DRAIN_SECONDS:.0f} s of the end of input"
                error = errors.error_object(errors.CANCELLED, text)
                effects.append(ToClient(jsonrpc.error_response(pending.raw_id, error)))
        self._away = "the input ended before a Coffer daemon was ready"
        effects += self._refuse_queue()
        return [*effects, Exit(self._exit_code())]

    def _drained(self) -> list[Effect]:
        if self._drain_until is None or any(key not in self._listens for key in self._inflight):
            return []
        if any(seen.kind == "request" for waiting in self._queue for seen in waiting.looks):
            return []
        if self._queue and self.link != "away":
            return []
        return [Exit(self._exit_code())]

    def _exit_code(self) -> int:
        return 3 if self._failed_any and not self.ever_attached else 0
