"""Faults of Coffer's own in a worker: whoever waits is told, and what has nothing to do with them goes on."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from coffer_common import errors, frames
from coffer_common.resources import Limits, McpServerConfig
from coffer_worker.calls import Calls
from coffer_worker.connections import Connections
from coffer_worker.core.relay import Refusal, Relay
from coffer_worker.lists import Lists
from coffer_worker.log import UpstreamLog
from coffer_worker.messages import Messages
from coffer_worker.upstream.connection import Connection
from coffer_worker.upstream.negotiate import Want
from coffer_worker.waiting import Waiter
from tests.support.wait import wait_for
from tests.support.worker import caller


class Outlet:
    """Takes frames; the first ``failures`` cannot be sent."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.sent: list[Any] = []

    def send(self, frame: Any, payload: bytes = b"") -> None:
        if self.failures:
            self.failures -= 1
            raise KeyError("a fault of ours")
        self.sent.append(frame)


class Owner:
    """Hears of nothing but states."""

    def __init__(self) -> None:
        self.states: list[str] = []

    def state_changed(self, state: frames.State) -> None:
        self.states.append(state.state)

    def opened(self, connection: Connection, member: Any) -> None: ...

    def lost(self, connection: Connection, member: Any, gone: Any) -> None: ...

    def recovered(self) -> None: ...


class Broken(Connection):
    """Every request of Coffer's own meets a fault."""

    async def ask(self, method: str, params: bytes, timeout: float | None = None, *, cancel: bool = True) -> bytes:
        raise KeyError(method)


def config(**limits: Any) -> McpServerConfig:
    return msgspec.convert({"transport": "stdio", "command": "x", "limits": limits}, McpServerConfig)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[UpstreamLog]:
    made = UpstreamLog(tmp_path / "up.log")
    yield made
    made.close()


async def fails(want: Want) -> Connection:
    raise KeyError("a fault of ours")


async def never(want: Want) -> Connection:
    await asyncio.Event().wait()
    raise AssertionError("nobody sets it")


@pytest.fixture
async def connections(log: UpstreamLog, request: pytest.FixtureRequest) -> AsyncIterator[Connections]:
    made = Connections("up", config(total_seconds=0.1), "", opener=request.param, owner=Owner(), log=log)
    yield made
    await made.stop("the end")


@pytest.mark.parametrize("connections", [fails], indirect=True)
@pytest.mark.parametrize("era", ["", "legacy"])
async def test_a_connection_that_is_not_made_by_a_fault_of_ours_is_refused(connections: Connections, era: Any) -> None:
    """Neither does the upstream stay at its start, nor do calls wait for their limit."""
    connections.pool.era = era
    refusals: list[Refusal] = []

    def ready(connection: Connection, member: Any) -> None:
        raise AssertionError("there is none")

    connections.want(Waiter(caller(), ready, refusals.append))
    await wait_for(lambda: refusals, what="the refusal")
    assert refusals[0].reason is errors.INTERNAL
    assert "KeyError" in refusals[0].message
    assert connections.state.state == "backoff"


@pytest.mark.parametrize("connections", [never], indirect=True)
async def test_limits_hold_after_a_fault_in_ending_a_call(connections: Connections, log: UpstreamLog) -> None:
    outlet, relay = Outlet(failures=1), Relay("up", config(total_seconds=0.1).limits)
    messages = Messages(relay, connections, outlet)
    calls = Calls(
        "up",
        config(total_seconds=0.1),
        relay,
        connections,
        messages,
        outlet=outlet,
        answered=lambda member: None,
        log=log,
        run="r",
    )
    calls.call(frames.Call(1, caller(), "tools/call", "echo"), b'{"name":"up__echo"}')
    await wait_for(lambda: outlet.sent, what="the end of the call")
    assert (outlet.sent[0].corr, outlet.sent[0].reason) == (1, "total_limit")


async def test_a_list_that_a_fault_of_ours_leaves_unread_is_told(log: UpstreamLog) -> None:
    lists = Lists("up", Limits(), Outlet(), log, spawn=lambda work: None, changed=lambda: None)
    connection = Broken(1, "up", lambda: 1, None)  # type: ignore[arg-type]
    connection.capabilities = b'{"tools":{}}'
    await lists.read(connection)
    assert lists.trouble("legacy") == "tools/list: Coffer itself failed in reading it: KeyError"
