"""The installed shim against a scripted daemon: framing, ends, and a daemon that comes and goes."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coffer_cli.shim import parse
from coffer_common.version import VERSION
from tests.support import procs
from tests.support.daemon import SHIM, Daemon
from tests.support.lines import Lines, lines
from tests.support.procs import alive
from tests.support.standin import StandIn
from tests.support.wait import wait_for

LISTEN = {"toolsListChanged": True, "resourceSubscriptions": ["file:///a"]}
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"


@pytest.fixture
def standin(make_daemon: Callable[..., Daemon]) -> StandIn:
    return StandIn(make_daemon)


async def errors(shim: Lines, *needles: str) -> None:
    await wait_for(lambda: all(n.encode() in shim.errors for n in needles), what=lambda: repr(bytes(shim.errors)))


async def test_it_starts_a_daemon_and_carries_both_ways(standin: StandIn) -> None:
    async with standin.shim() as shim:
        answer = await shim.initialize()
        assert answer["result"]["serverInfo"]["version"] == str(standin.pid)
        assert (await shim.request(7, "echo", {"a": 1e2}))["result"]["echo"] == {"a": 100.0}
    assert standin.got()[0] == {"hello": "/mcp"}


async def test_answers_come_with_the_client_s_own_ids(standin: StandIn) -> None:
    async with standin.shim() as shim:
        for mid in (0, "", "7", 7, -1):
            assert (await shim.request(mid, "ping"))["id"] == mid


async def test_crlf_blank_lines_bom_and_a_last_line_without_its_end(standin: StandIn) -> None:
    """F08: accepted on input; output is LF only."""
    async with standin.shim() as shim:
        await shim.send(b"\xef\xbb\xbf" + b'{"jsonrpc":"2.0","id":1,"method":"ping"}\r\n\r\n  \n')
        await shim.send(b'{"jsonrpc":"2.0","id":2,"method":"ping"}')
        shim.close_stdin()
        assert await shim.ended() == 0
        assert [json.loads(line)["id"] for line in shim.raw] == [1, 2]
        assert not any(b"\r" in line for line in shim.raw)


async def test_a_malformed_line_is_answered_and_the_next_one_served(standin: StandIn) -> None:
    """F09: one -32700 with id null, then the ping is answered."""
    async with standin.shim() as shim:
        await shim.send(b'{oops\n{"jsonrpc":"2.0","id":1,"method":"ping"}\n')
        first = await shim.next()
        assert (first["id"], first["error"]["code"]) == (None, -32700)
        assert (await shim.answer(1))["result"]["pid"] == standin.pid


async def test_end_of_input_waits_for_the_answers_in_flight(standin: StandIn) -> None:
    """F13: all accepted answers are written within a bounded drain, then exit 0."""
    async with standin.shim() as shim:
        await shim.initialize()
        call = {"jsonrpc": "2.0", "method": "sleep", "params": {"seconds": 0.3}}
        await shim.send(*({**call, "id": mid} for mid in (1, 2, 3)))
        shim.close_stdin()
        assert await shim.ended() == 0
        assert [json.loads(line)["id"] for line in shim.raw[1:]] == [1, 2, 3]


async def test_stdout_is_json_rpc_only(standin: StandIn) -> None:
    """F14: auto-start message, a forced warning, verbose Python: all of it goes to stderr."""
    async with standin.shim(PYTHONWARNINGS="default", PYTHONVERBOSE="1") as shim:
        await shim.initialize()
        await errors(shim, "coffer-shim: starting coffer-daemon")
        shim.close_stdin()
        await shim.ended()
    assert all(json.loads(line)["jsonrpc"] == "2.0" for line in shim.raw)


async def test_order_is_kept(standin: StandIn) -> None:
    """H12: what is written in one go reaches the daemon in that order."""
    methods = ["notifications/initialized", *(f"m{n}" for n in range(50))]
    async with standin.shim() as shim:
        messages = [{"jsonrpc": "2.0", "method": m, **({"id": n} if n else {})} for n, m in enumerate(methods)]
        await shim.send(*messages)
        await shim.answer(50)
    assert standin.methods() == methods


async def test_batches_are_refused_where_the_revision_has_none(standin: StandIn) -> None:
    """H13: one clear -32600, never silence."""
    async with standin.shim() as shim:
        await shim.initialize("2025-06-18")
        for line in (b"[]", b"[1]", b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]'):
            await shim.send(line + b"\n")
            error = await shim.next()
            assert (error["id"], error["error"]["code"]) == (None, -32600)
    assert standin.methods() == ["initialize", "notifications/initialized"]


async def test_batches_of_2025_03_26_are_answered_as_one(standin: StandIn) -> None:
    """H13: real batch support for the one revision that has it."""
    async with standin.shim() as shim:
        await shim.initialize("2025-03-26")
        batch = [{"jsonrpc": "2.0", "id": mid, "method": "ping"} for mid in (1, "1")]
        await shim.send([*batch, {"jsonrpc": "2.0", "method": "note"}])
        assert [answer["id"] for answer in await shim.next()] == [1, "1"]
    assert standin.methods()[2:] == ["ping", "ping", "note"]


async def test_no_spawn_exits_with_three(standin: StandIn) -> None:
    for flags, env in ((["--no-spawn"], {}), ([], {"COFFER_NO_SPAWN": "1"})):
        async with standin.shim(*flags, **env) as shim:
            assert await shim.ended() == 3
            assert b"coffer daemon start" in shim.errors
            assert not shim.raw
    assert not (standin.home / "daemon.json").exists()


async def test_no_spawn_attaches_to_a_running_daemon(standin: StandIn) -> None:
    async with standin.shim() as first:
        await first.initialize()
        async with standin.shim("--no-spawn", "--server", "files") as shim:
            await shim.initialize()
    assert {"hello": "/servers/files/mcp"} in standin.got()


@pytest.mark.parametrize("flags", [["--what"], ["--server"], ["--server", "a/b"], ["--server=a", "--group=b"]])
async def test_usage_errors_exit_with_two(standin: StandIn, flags: list[str]) -> None:
    async with standin.shim(*flags) as shim:
        assert await shim.ended() == 2
        assert b"usage: coffer-shim" in shim.errors
        assert not shim.raw


@pytest.mark.fault
async def test_a_crashed_daemon_is_replaced_and_lost_calls_get_an_error(standin: StandIn) -> None:
    """H03: no word (a crash): the lost call is answered with an error, a new daemon is started, the session opened
    anew with the client's own initialize, and the client told that lists may have changed."""
    async with standin.shim() as shim:
        await shim.initialize()
        first = standin.pid
        await shim.send({"jsonrpc": "2.0", "id": "lost", "method": "hold"})
        await wait_for(lambda: "hold" in standin.methods())
        os.kill(first, signal.SIGKILL)
        error = (await shim.answer("lost"))["error"]
        assert error["data"]["reason"] == "daemon_lost"
        assert "hold" in error["message"]
        assert (await shim.request("next", "echo"))["result"]["pid"] != first
        assert await list_changes(shim, 3) == {"tools", "resources", "prompts"}
        assert standin.methods(standin.pid) == ["initialize", "notifications/initialized", "echo"]
        assert standin.got(standin.pid)[1]["params"] == standin.got(first)[1]["params"]
        assert not [line for line in shim.raw if b"coffer-shim/" in line]


async def list_changes(shim: Lines, count: int) -> set[str]:
    seen: set[str] = set()
    while len(seen) < count:
        seen.add((await shim.next())["method"].split("/")[1])
    return seen


@pytest.mark.fault
async def test_a_daemon_stopped_on_purpose_is_not_started_again(standin: StandIn) -> None:
    """The shim fails its calls, starts nothing, and attaches when a daemon appears."""
    async with standin.shim() as shim:
        await shim.initialize()
        first = standin.pid
        await shim.send({"jsonrpc": "2.0", "id": 1, "method": "hold"}, {"jsonrpc": "2.0", "id": 2, "method": "stop"})
        assert {(await shim.next())["error"]["data"]["reason"] for _ in range(2)} == {"daemon_lost"}
        standin.wait_end(first)
        for mid in (3, 4):
            error = (await shim.request(mid, "echo"))["error"]
            assert error["data"] == {"reason": "daemon_absent", "retryable": True}
            assert "coffer daemon start" in error["message"]
        async with standin.shim() as other:  # a newly launched shim always may start one
            await other.initialize()
            assert await list_changes(shim, 3) == {"tools", "resources", "prompts"}
            assert (await shim.request(5, "echo"))["result"]["pid"] == standin.pid != first


@pytest.mark.fault
async def test_a_call_right_after_a_new_start_is_answered(standin: StandIn) -> None:
    """A call finds the daemon that somebody has just started, without waiting for the shim's next look."""
    async with standin.shim() as shim:
        await shim.initialize()
        first = standin.pid
        await shim.send({"jsonrpc": "2.0", "id": 1, "method": "stop"})
        assert (await shim.next())["error"]["data"]["reason"] == "daemon_lost"
        standin.wait_end(first)
        async with standin.shim() as other:
            await other.initialize()
            await shim.send({"jsonrpc": "2.0", "id": 2, "method": "echo"})
            assert (await shim.answer(2))["result"]["pid"] == standin.pid != first


@pytest.mark.fault
async def test_a_restarting_daemon_is_waited_for_and_then_started(standin: StandIn) -> None:
    async with standin.shim() as shim:
        await shim.initialize()
        first = standin.pid
        standin.script(linger=0)
        await shim.send({"jsonrpc": "2.0", "id": 1, "method": "restart"})
        assert (await shim.answer(1))["error"]["data"]["reason"] == "daemon_lost"
        assert (await shim.request(2, "echo"))["result"]["pid"] != first  # waited, and started by the shim at last


@pytest.mark.fault
async def test_a_modern_client_s_listen_streams_are_carried_over(standin: StandIn) -> None:
    """The open listen is sent again with the same id, its second acknowledgement kept, and what it may have missed
    announced on it."""
    async with standin.shim() as shim:
        await shim.send(
            {"jsonrpc": "2.0", "id": 7, "method": "subscriptions/listen", "params": {"notifications": LISTEN}}
        )
        ack = await shim.next()
        assert ack["method"] == "notifications/subscriptions/acknowledged"
        first = standin.pid
        os.kill(first, signal.SIGKILL)
        seen = [await shim.next() for _ in range(2)]
        assert [m["method"] for m in seen] == ["notifications/tools/list_changed", "notifications/resources/updated"]
        assert [m["params"]["_meta"][SUBSCRIPTION] for m in seen] == [7, 7]
        assert seen[1]["params"]["uri"] == "file:///a"
        assert standin.methods(standin.pid) == ["subscriptions/listen"]


@pytest.mark.fault
async def test_subscriptions_and_log_level_are_set_up_again(standin: StandIn) -> None:
    async with standin.shim() as shim:
        await shim.initialize()
        for mid, uri in enumerate(("file:///a", "file:///b")):
            await shim.request(mid, "resources/subscribe", {"uri": uri})
        await shim.request(2, "resources/unsubscribe", {"uri": "file:///a"})
        await shim.request(3, "logging/setLevel", {"level": "debug"})
        os.kill(standin.pid, signal.SIGKILL)
        await list_changes(shim, 3)
        pid = standin.pid
        await wait_for(lambda: len(standin.got(pid)) == 5)
        again = [(m["method"], m.get("params")) for m in standin.got(pid)[2:]]
        assert again == [
            ("notifications/initialized", None),
            ("logging/setLevel", {"level": "debug"}),
            ("resources/subscribe", {"uri": "file:///b"}),
        ]


@pytest.mark.fault
async def test_a_question_of_a_dead_daemon_is_withdrawn_and_a_late_answer_dropped(standin: StandIn) -> None:
    async with standin.shim() as shim:
        await shim.initialize()
        await shim.send({"jsonrpc": "2.0", "id": 1, "method": "ask", "params": {"id": "q-1"}})
        assert (await shim.next())["id"] == "q-1"
        os.kill(standin.pid, signal.SIGKILL)
        seen = [await shim.next() for _ in range(2)]
        assert {m.get("method") for m in seen} == {None, "notifications/cancelled"}
        assert next(m for m in seen if "method" in m)["params"]["requestId"] == "q-1"
        await list_changes(shim, 3)
        await shim.send({"jsonrpc": "2.0", "id": "q-1", "result": {"roots": []}})
        await shim.request(2, "echo")
        assert not [m for m in standin.got(standin.pid) if isinstance(m, dict) and m.get("id") == "q-1"]


async def test_an_older_daemon_is_named_with_the_remedy(standin: StandIn) -> None:
    """D04: the release is part of the greeting; a difference is said, with what to do."""
    standin.script(version="0.0.9")
    async with standin.shim() as shim:
        await shim.initialize()
        await errors(shim, "0.0.9", "coffer daemon restart")


async def test_a_refused_endpoint_is_told_to_the_client(standin: StandIn) -> None:
    standin.script(refuse="endpoint", message="no server is called nope; see: coffer mcp list")
    async with standin.shim("--server", "nope") as shim:
        answer = await shim.request(1, "initialize", {})
        assert "no server is called nope" in answer["error"]["message"]


async def test_a_daemon_that_cannot_start_is_told_to_the_client(standin: StandIn) -> None:
    standin.script(fail="the disk is made of cheese")
    async with standin.shim() as shim:
        answer = await shim.request(1, "initialize", {})
        assert "the disk is made of cheese" in answer["error"]["message"]
        shim.close_stdin()
        assert await shim.ended() == 3


async def test_big_lines_pass_both_ways_with_a_slow_reader(standin: StandIn) -> None:
    async with standin.shim() as shim:
        assert len((await shim.request(1, "flood", {"size": 10_000_000}))["result"]["text"]) == 10_000_000
        text = "ä" * 3_000_000
        assert (await shim.request(2, "echo", {"text": text}))["result"]["echo"]["text"] == text


async def test_a_line_beyond_the_cap_gets_one_error_and_the_connection_lives(standin: StandIn) -> None:
    async with standin.shim() as shim:
        chunk = b"x" * (1024 * 1024)
        await shim.send(b'{"jsonrpc":"2.0","id":1,"params":"')
        for _ in range(65):
            await shim.send(chunk)
        await shim.send(b'"}\n')
        error = await shim.next()
        assert (error["id"], error["error"]["code"]) == (None, -32600)
        assert (await shim.request(2, "ping"))["id"] == 2


async def test_a_client_that_does_not_read_stops_the_flow_without_growing_the_shim(standin: StandIn) -> None:
    """Back-pressure: the shim reads neither side further than it can pass on."""
    process = await asyncio.create_subprocess_exec(
        SHIM, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, env=standin.env, cwd="/", limit=2**16
    )
    assert process.stdin is not None
    assert process.stdout is not None
    for mid in range(60):
        message = {"jsonrpc": "2.0", "id": mid, "method": "flood", "params": {"size": 1_000_000}}
        process.stdin.write(json.dumps(message).encode() + b"\n")
    await process.stdin.drain()
    await wait_for(lambda: len(standin.methods()) == 60)
    peak = int(Path(f"/proc/{process.pid}/status").read_text().split("VmHWM:")[1].split()[0])
    assert peak < 40_000  # of 60 MB on their way
    process.stdin.close()
    ids: list[Any] = []
    rest = b""
    while data := await process.stdout.read(2**20):
        *whole, rest = (rest + data).split(b"\n")
        ids += [json.loads(line)["id"] for line in whole]
    assert ids == list(range(60))
    assert await process.wait() == 0


async def test_it_ends_when_its_parent_is_gone(standin: StandIn, tmp_path: Path) -> None:
    """Also where the streams stay open: here the test holds their other ends."""
    code = (
        "import subprocess, sys, time\n"
        "p = subprocess.Popen([sys.argv[1]])\n"
        "print(p.pid, file=open(sys.argv[2] + '.new', 'w')); import os; os.rename(sys.argv[2] + '.new', sys.argv[2])\n"
        "time.sleep(600)"
    )
    pid_file = tmp_path / "pid"
    async with lines([sys.executable, "-c", code, SHIM, str(pid_file)], env=standin.env) as parent:
        await parent.initialize()
        pid = int(pid_file.read_text())
        parent.process.kill()
        await wait_for(lambda: not alive(pid), what="end of the shim")


async def test_it_ends_when_nobody_reads_its_output(standin: StandIn) -> None:
    reader, writer = os.pipe()
    process = await asyncio.create_subprocess_exec(
        SHIM, stdin=asyncio.subprocess.PIPE, stdout=writer, env=standin.env, cwd="/"
    )
    os.close(writer)
    assert process.stdin is not None
    process.stdin.write(b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n')
    await asyncio.to_thread(os.read, reader, 65536)
    os.close(reader)
    assert await asyncio.wait_for(process.wait(), 20) == 0
    process.stdin.close()


async def test_it_stays_small_and_loads_neither_asyncio_nor_the_sdk(standin: StandIn) -> None:
    """Idle RSS under 20 MB: what would break that are imports."""
    code = (
        "import sys; import coffer_cli.shim, coffer_cli.shim_loop; "
        "print(*(m for m in ('asyncio', 'mcp', 'mcp_types', 'typer', 'rich', 'hashlib', 'subprocess', 'psutil') "
        "if m in sys.modules))"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONPATH": ""}
    )
    out, _ = await process.communicate()
    assert out.split() == []


@pytest.mark.parametrize("module", ["coffer_cli.shim", "coffer_supervisor.__main__"])
def test_on_windows_it_says_what_to_do(module: str) -> None:
    code = (
        "import sys; sys.platform = 'win32'; sys.modules['fcntl'] = None; sys.argv[1:] = []\n"
        f"from {module} import main\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "WSL" in done.stderr
    assert "Traceback" not in done.stderr


async def test_help_and_version_go_to_stdout(standin: StandIn) -> None:
    for flag, text in (("--help", b"usage: coffer-shim"), ("--version", VERSION.encode())):
        async with standin.shim(flag) as shim:
            assert await shim.ended() == 0
            assert text in b"".join(shim.raw)


@pytest.mark.parametrize(
    ("argv", "env", "endpoint", "spawn"),
    [
        ([], {}, "/mcp", True),
        (["--server", "files"], {"COFFER_NO_SPAWN": "0"}, "/servers/files/mcp", True),
        (["--server=files", "--no-spawn"], {}, "/servers/files/mcp", False),
        (["--group", "office"], {"COFFER_NO_SPAWN": "1"}, "/groups/office/mcp", False),
    ],
)
def test_arguments(argv: list[str], env: dict[str, str], endpoint: str, spawn: bool) -> None:
    options = parse(argv, env)
    assert (options.endpoint, options.spawn) == (endpoint, spawn)


@pytest.mark.fault
async def test_a_daemon_that_is_leaving_is_replaced_for_a_newly_launched_shim(standin: StandIn) -> None:
    """It still listens, and refuses because it is stopping: the shim starts its successor, which waits for its end."""
    standin.script(refuse="stopping")
    async with standin.shim("--server", "first") as first:
        await wait_for(lambda: {"hello": "/servers/first/mcp"} in standin.got())
        pid = standin.pid
        standin.script()
        await first.send(request(1, "echo"))
        os.kill(pid, signal.SIGTERM)
        assert (await first.answer(1))["result"]["pid"] == standin.pid != pid


@pytest.mark.slow
@pytest.mark.fault
async def test_a_stopped_daemon_is_named_rather_than_waited_for_without_end(standin: StandIn) -> None:
    """A daemon that accepts and says nothing (SIGSTOP): its pid and the next step reach the client."""
    async with standin.shim() as first:
        await first.initialize()
        pid = standin.pid
        os.kill(pid, signal.SIGSTOP)
        try:
            async with standin.shim() as shim:
                error = (await shim.request(1, "initialize", {}))["error"]
                assert str(pid) in error["message"]
                assert "coffer daemon" in error["message"]
        finally:
            os.kill(pid, signal.SIGCONT)


def request(mid: Any, method: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": mid, "method": method}


async def test_a_signal_ends_it_while_a_start_is_stuck(standin: StandIn) -> None:
    """P03: bounded exit, also in the middle of a start."""
    standin.script(delay=1.0)
    async with standin.shim() as shim:
        await errors(shim, "starting coffer-daemon")
        await wait_for(lambda: procs.titled(standin.home, "coffer-daemon"))
        shim.process.terminate()
        assert await shim.ended() == -signal.SIGTERM
    await wait_for((standin.home / "daemon.json").exists)
