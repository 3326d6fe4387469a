"""`/metrics`: who may read it, and that it says what happened."""

from __future__ import annotations

import http.client
import time

from prometheus_client.parser import text_string_to_metric_families

from coffer_supervisor.core.tally import Tally
from tests.support.daemon import Daemon, UnixConnection
from tests.support.upstreams import fake, raw


def scraped(daemon: Daemon, headers: dict[str, str]) -> tuple[int, str]:
    """Status and text over TCP."""
    connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=20)
    try:
        connection.request("GET", "/metrics", headers=headers)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every sample by name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_over_tcp_the_daemons_token_is_needed(daemon: Daemon) -> None:
    """Neither nobody nor a client with a token of its own reads the figures; over the socket no token is asked for."""
    token = daemon.api("POST", "/clients", {"name": "cursor"})["token"]
    assert scraped(daemon, {})[0] == 401
    assert scraped(daemon, {"Authorization": f"Bearer {token}"})[0] == 403
    assert scraped(daemon, {"Authorization": f"Bearer {daemon.token}"})[0] == 200
    connection = UnixConnection(str(daemon.run_dir / "api.sock"), 20)
    try:
        connection.request("GET", "/metrics")
        response = connection.getresponse()
        assert response.status == 200
        assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert b"coffer_daemon_info" in response.read()
    finally:
        connection.close()


def test_calls_errors_durations_restarts_and_memory_are_told(daemon: Daemon) -> None:
    """Calls by outcome, a histogram of how long they took, and how each upstream is."""
    daemon.add_server("files", fake("--tools", "echo", "fail"))
    daemon.add_server("other", raw())
    daemon.wait_state("files")
    daemon.wait_state("other")
    path = "/resources/mcp_server/files/call"
    for tool in ("echo", "echo", "fail"):
        daemon.api("POST", path, {"tool": tool, "arguments": {}})
    status, text = scraped(daemon, {"X-Coffer-Token": daemon.token})
    assert status == 200
    found = samples(text)

    def value(name: str, **labels: str) -> float:
        return found[name, frozenset(labels.items())]

    own = {"server": "files", "type": "tool"}
    assert value("coffer_calls_total", status="ok", **own) == 2
    assert value("coffer_calls_total", status="error", **own) == 1
    assert value("coffer_call_errors_total", **own) == 1
    assert value("coffer_call_duration_seconds_count", **own) == 3
    assert value("coffer_call_duration_seconds_bucket", le="+Inf", **own) == 3
    assert value("coffer_call_duration_seconds_sum", **own) > 0
    for server in ("files", "other"):
        assert value("coffer_upstream_state", server=server, state="ready") == 1
        assert value("coffer_upstream_state", server=server, state="failed") == 0
        assert value("coffer_calls_in_flight", server=server) == 0
        assert value("coffer_upstream_restarts", server=server) == 0
        assert value("coffer_upstream_processes", server=server) >= 1
        assert value("coffer_upstream_resident_bytes", server=server) > 1_000_000
    assert value("coffer_invocations_dropped_total") == 0


def test_counting_is_cheap() -> None:
    """A call pays about a microsecond; measured against the same number of additions to a dictionary."""
    tally, plain = Tally(), dict[str, int]()

    def seconds(step: object) -> float:
        assert callable(step)
        began = time.perf_counter()
        for _ in range(20_000):
            step()
        return time.perf_counter() - began

    def add() -> None:
        plain["x"] = plain.get("x", 0) + 1

    ratio = min(seconds(lambda: tally.count("files", "tool", "ok", 0.02)) / seconds(add) for _ in range(5))
    assert ratio < 25
