"""What makes one process the daemon: lock, port, sockets, ``daemon.json``, token. Real sockets and files."""

import json
import os
import socket
import threading
from pathlib import Path

import msgspec
import psutil
import pytest

from coffer_common import discovery, flocks
from coffer_common.paths import Home
from coffer_supervisor import daemon, upkeep
from coffer_supervisor.daemon import AlreadyRunning, StartError
from tests.support.wait import wait_until


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home.from_env({"COFFER_HOME": str(tmp_path / "h")})
    home.ensure()
    return home


@pytest.fixture
def ports() -> list[int]:
    """Three ports that were free a moment ago."""
    socks = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    numbers = [sock.getsockname()[1] for sock in socks]
    for sock in socks:
        sock.close()
    return numbers


def hold(port: int, host: str = "127.0.0.1") -> socket.socket:
    return socket.create_server((host, port))


def test_ports_the_last_one_used_first_then_in_order(ports: list[int]) -> None:
    """The last one used first, then in order, first free wins."""
    with daemon.claim_port(ports[1], ports) as last, daemon.claim_port(ports[1], ports) as first:
        assert [last.getsockname(), first.getsockname()] == [("127.0.0.1", ports[1]), ("127.0.0.1", ports[0])]
        with daemon.claim_port(None, ports) as third:
            assert third.getsockname()[1] == ports[2]
            with pytest.raises(StartError, match=f"{ports[0]} to {ports[2]}"):
                daemon.claim_port(None, ports)


def test_a_last_port_outside_the_range_is_not_taken(ports: list[int]) -> None:
    with daemon.claim_port(ports[0], ports[1:]) as sock:
        assert sock.getsockname()[1] == ports[1]


def test_a_port_that_a_stranger_holds_on_all_addresses_is_not_shared(ports: list[int]) -> None:
    """D05: a client never talks to the stranger."""
    with hold(ports[0], ""), daemon.claim_port(None, ports) as sock:
        assert sock.getsockname()[1] == ports[1]


def test_a_claim_holds_everything_and_a_release_lets_go(home: Home, ports: list[int]) -> None:
    claimed = daemon.claim(home, ports=ports)
    try:
        assert flocks.try_lock(home.daemon_alive) is None
        record = json.loads(home.daemon_json.read_text())
        assert record["version"] == 1
        assert record["pid"] == os.getpid()
        assert record["port"] == claimed.tcp.getsockname()[1] == ports[0]
        assert record["run_dir"] == str(home.run)
        assert record["started_at"].endswith("Z")
        assert len(record["token"]) == 32
        assert home.daemon_json.stat().st_mode & 0o777 == 0o600
        for path in (home.api_sock, home.mcp_sock):
            assert path.stat().st_mode & 0o777 == 0o600
            discovery.connect(path).close()
    finally:
        claimed.release()
    assert not home.mcp_sock.exists()
    assert home.daemon_json.exists()
    again = daemon.claim(home, ports=ports)
    assert (again.info.token, again.info.port) == (record["token"], record["port"])
    again.release()
    again.release()


def test_a_release_does_not_remove_the_successor_s_sockets(home: Home, ports: list[int]) -> None:
    first = daemon.claim(home, ports=ports)
    first.release()
    second = daemon.claim(home, ports=ports)
    first.release()
    assert home.mcp_sock.exists()
    second.release()


def test_only_rotation_changes_the_token(home: Home, ports: list[int]) -> None:
    claimed = daemon.claim(home, ports=ports)
    old = claimed.info.token
    heard: list[str] = []
    claimed.on_token = heard.append
    fresh = claimed.rotate_token()
    assert fresh.token == claimed.info.token == json.loads(home.daemon_json.read_text())["token"] != old
    assert heard == [fresh.token]
    assert claimed.info.port == fresh.port
    claimed.release()


@pytest.mark.parametrize("token", ["short", 7, "ä" * 32])
def test_a_token_that_is_none_is_replaced(home: Home, ports: list[int], token: object) -> None:
    home.daemon_json.write_text(json.dumps({"version": 1, "token": token, "port": "x"}))
    claimed = daemon.claim(home, ports=ports)
    assert claimed.info.token != token
    claimed.release()


def test_a_failed_claim_leaves_nothing_behind(home: Home, ports: list[int]) -> None:
    home.mcp_sock.mkdir()
    (home.mcp_sock / "full").touch()
    with pytest.raises(StartError, match="cannot listen"):
        daemon.claim(home, ports=ports)
    assert not home.daemon_json.exists()
    held = flocks.try_lock(home.daemon_alive)
    assert held is not None
    held.release()
    hold(ports[0]).close()


def test_a_predecessor_that_does_not_end_is_named(home: Home, ports: list[int]) -> None:
    with flocks.lock(home.daemon_alive, 1), pytest.raises(AlreadyRunning, match=r"still ending .*ps -eo"):
        daemon.claim(home, ports=ports, wait=0.1)


def test_backups_of_unreadable_records_are_bounded(home: Home) -> None:
    assert discovery.keep_backup(home) is None
    for number in range(8):
        home.daemon_json.write_text(f"bad {number}")
        assert discovery.keep_backup(home) is not None
    kept = sorted(home.backups.iterdir())
    assert [copy.read_text() for copy in kept] == ["bad 0", "bad 1", "bad 2", "bad 3", "bad 7"]
    assert {copy.stat().st_mode & 0o777 for copy in kept} == {0o600}


def test_records_of_other_shapes(home: Home) -> None:
    """Readers tolerate unknown fields."""
    good = {"version": 1, "pid": 1, "port": 8000, "token": "t", "started_at": "", "binary_path": "", "later": {}}

    def read(text: str) -> object:
        home.daemon_json.write_text(text)
        return discovery.read_info(home)

    assert isinstance(read(json.dumps(good)), discovery.DaemonInfo)
    assert isinstance(read("\ufeff" + json.dumps(good)), discovery.DaemonInfo)
    assert read(json.dumps({**good, "version": 2})) == "other_version"
    for bad in ("", "[]", "{", "{}", json.dumps({**good, "port": 0}), json.dumps({**good, "pid": "1"})):
        assert read(bad) == "invalid"
    assert discovery.salvaged(home) == (8000, "t")
    home.daemon_json.write_bytes(b'{"port":8000,"token":"\xff"}')
    assert discovery.read_info(home) == "invalid", "damaged, and no text"
    assert discovery.salvaged(home) == (None, None)
    home.daemon_json.unlink()
    home.daemon_json.mkdir()
    with pytest.raises(discovery.DiscoveryError, match="cannot read"):
        discovery.read_info(home)


def test_a_failed_write_keeps_the_old_record(home: Home, ports: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    claimed = daemon.claim(home, ports=ports)
    before = home.daemon_json.read_bytes()

    def full(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        claimed.rotate_token()
    assert home.daemon_json.read_bytes() == before
    assert not list(home.root.glob(".daemon.json*"))
    claimed.release()


def test_a_socket_of_another_user_is_not_spoken_to(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """The peer's uid is checked before anything is sent."""
    listener = daemon.listen_unix(home.mcp_sock)
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000)
    with pytest.raises(discovery.DiscoveryError, match="not by you"):
        discovery.connect(home.mcp_sock)
    listener.close()


def test_a_socket_that_nobody_accepts_on_ends_the_wait(home: Home) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(home.mcp_sock))
    listener.listen(0)
    waiting = []
    with pytest.raises(discovery.DiscoveryError, match="does not accept"):
        for _ in range(10):
            waiting.append(discovery.connect(home.mcp_sock, timeout=0.1))
    for sock in (*waiting, listener):
        sock.close()


def test_psutil_answers_where_there_is_no_proc() -> None:
    assert discovery._process_absence_by_psutil(2**22 + 1) == "pid_gone"
    assert discovery._process_absence_by_psutil(os.getpid()) == "pid_reused"
    titled = psutil.Popen(["sh", "-c", "read x", "coffer-daemon"], stdin=-1)
    # A process that has just replaced itself has no arguments for a moment.
    wait_until(lambda: discovery._process_absence_by_psutil(titled.pid) is None, 5)
    assert discovery.is_daemon(titled.pid)
    titled.communicate()


def test_the_binary_path_names_what_can_be_started() -> None:
    assert os.access(discovery.executable(), os.X_OK)


@pytest.mark.parametrize("spoilt", [None, "", '{"version": 1, "pid": "x"', "other pid"])
def test_a_spoilt_file_is_put_back_while_the_daemon_lives(home: Home, ports: list[int], spoilt: str | None) -> None:
    """Who holds the lock is the daemon: its file says so again, with port and token as they were."""
    claimed = daemon.claim(home, ports=ports)
    try:
        assert not upkeep.put_back(claimed)
        home.daemon_json.unlink()
        if spoilt == "other pid":
            discovery.write_info(home, msgspec.structs.replace(claimed.info, pid=1))
        elif spoilt is not None:
            home.daemon_json.write_text(spoilt)
        assert upkeep.put_back(claimed)
        assert discovery.read_info(home) == claimed.info
        home.daemon_json.write_text('{"version": 99}')
        assert not upkeep.put_back(claimed)
    finally:
        claimed.release()


def test_a_daemon_that_is_found_again_ends_the_wait_for_its_end(home: Home, ports: list[int]) -> None:
    """Who lost its file puts it back within seconds: nobody waits half a minute for what does not end."""
    claimed = daemon.claim(home, ports=ports)
    titled = psutil.Popen(["sh", "-c", "read x", "coffer-daemon"], stdin=-1)
    wait_until(lambda: discovery.is_daemon(titled.pid), 5)
    back = threading.Timer(0.2, discovery.write_info, (home, msgspec.structs.replace(claimed.info, pid=titled.pid)))
    try:
        home.daemon_json.unlink()
        back.start()
        with pytest.raises(AlreadyRunning, match=f"already running: pid {titled.pid}"):
            daemon.claim(home, ports=ports, wait=25)
    finally:
        back.join()
        claimed.release()
        titled.communicate()


def test_a_daemon_that_cannot_be_reached_is_named(home: Home, ports: list[int]) -> None:
    """What to end is said by its process id, where that is known to be a daemon; else how to find it."""
    claimed = daemon.claim(home, ports=ports)
    try:
        home.mcp_sock.unlink()
        with pytest.raises(AlreadyRunning, match=r"sockets in .*; look for it with: ps "):
            daemon.claim(home, ports=ports, wait=0.05)
    finally:
        claimed.release()
