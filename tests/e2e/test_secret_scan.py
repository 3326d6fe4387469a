"""A representative session with marked secrets, and a search for them everywhere; its control finds planted copies."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import pytest

from tests.support.daemon import Daemon
from tests.support.upstreams import ROOT
from tests.support.wait import wait_until

pytestmark = pytest.mark.e2e

LEAKY = [sys.executable, "-m", "tests.fixtures.leaky_server"]


# ------------------------------------------------------------------ the search


def marked(name: str) -> str:
    """A secret that is found wherever any considerable part of it is; the quote and the space are spelt variously."""
    return f'mk-{name}-{os.urandom(8).hex()}" {os.urandom(12).hex()}'


def needles(secret: str) -> list[bytes]:
    """What to look for: both ends, since a partial print is a leak, and the whole in other spellings."""
    spelt = {
        secret[:20],
        secret[-20:],
        quote(secret),
        base64.b64encode(secret.encode()).decode(),
        secret.encode().hex(),
    }
    return [one.encode() for one in spelt]


def find(secrets: Mapping[str, str], places: Mapping[str, bytes]) -> list[tuple[str, str]]:
    """(place, name of the secret) for each place where one stands."""
    return sorted(
        (place, name)
        for place, content in places.items()
        for name, secret in secrets.items()
        if any(needle in content for needle in needles(secret))
    )


def files(home: Path) -> dict[str, bytes]:
    """All that is written under the home."""
    return {str(path.relative_to(home)): path.read_bytes() for path in home.rglob("*") if path.is_file()}


def tables(database: Path) -> dict[str, bytes]:
    """Every row of every table, as text."""
    with contextlib.closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as connection:
        names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {
            f"table {name}": repr(connection.execute(f'SELECT * FROM "{name}"').fetchall()).encode() for name in names
        }


def processes() -> dict[str, bytes]:
    """Command line, title and environment of every process of this machine."""
    found: dict[str, bytes] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        for name in ("cmdline", "environ", "comm"):
            with contextlib.suppress(OSError):
                found[f"{folder.name} {name}"] = (folder / name).read_bytes()
    return found


# ------------------------------------------------------------------ the session


class Careless(BaseHTTPRequestHandler):
    """A legacy HTTP upstream that repeats what it was sent in its errors; ``server.seen`` is what reached it."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        seen = f"{self.path}\n{self.headers}"
        self.server.seen.append(seen)  # type: ignore[attr-defined]
        message = json.loads(body)
        method = message.get("method")
        if method == "server/discover":
            self.answer(400, b"not known here")
        elif "id" not in message:
            self.answer(202, b"")
        elif method == "initialize":
            info = {"name": "careless", "version": "1"}
            self.result(message, {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info})
        elif method == "tools/list":
            self.result(
                message, {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in ("err", "e500")]}
            )
        elif message["params"]["name"] == "err":
            error = {"code": -32000, "message": f"bad request {seen}", "data": seen}
            self.answer(200, json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": error}).encode())
        else:
            self.answer(500, f"trace: {seen}".encode())

    def do_GET(self) -> None:
        self.answer(405, b"")

    def do_DELETE(self) -> None:
        self.answer(200, b"")

    def result(self, message: dict[str, Any], result: dict[str, Any]) -> None:
        self.answer(200, json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode())

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        return None


@pytest.fixture
def careless() -> Iterator[ThreadingHTTPServer]:
    """That upstream, running."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Careless)
    server.daemon_threads = True
    server.seen = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@dataclass
class Session:
    """What was done and shown. ``shown``: all outputs and answers, by what was asked."""

    daemon: Daemon
    shown: dict[str, bytes] = field(default_factory=dict)

    def coffer(self, *words: str, secret: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command; its output is searched."""
        done = self.daemon.cli(*words, input=secret) if secret else self.daemon.cli(*words)
        self.shown[f"{len(self.shown)} coffer {' '.join(words)}"] = (done.stdout + done.stderr).encode()
        return done

    def http(self, path: str, token: str, raw: bytes = b"") -> bytes:
        """One request over TCP (or bytes as they are); the answer is searched."""
        body = b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}'
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.daemon.port}\r\nContent-Type: application/json\r\n"
        head += f"Accept: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
        head += f"Authorization: Bearer {token}\r\n\r\n" if token else "\r\n"
        answer = b""
        with socket.create_connection(("127.0.0.1", self.daemon.port), 10) as sock:
            sock.sendall(raw or head.encode() + body)
            while chunk := sock.recv(65536):
                answer += chunk
        self.shown[f"{len(self.shown)} HTTP"] = answer
        return answer


def use_everything(session: Session, secrets: dict[str, str], url: str) -> None:
    """Register, call, fail, look at everything there is to look at."""
    coffer = session.coffer
    coffer("credential", "use-file")
    for name in ("env", "header", "url"):
        assert coffer("credential", "set", name, "--stdin", secret=secrets[name]).returncode == 0
    path = f"PYTHONPATH={ROOT}"
    coffer("mcp", "add", "leaky", "--env", path, "--env", "TOKEN=${env}", "--env", "OTHER=x-${env}-y", "--", *LEAKY)
    coffer("mcp", "add", "web", "--url", f"{url}/${{url}}/mcp?q=${{url}}", "--header", "X-Api-Key=Key ${header}")
    coffer("mcp", "add", "dead", "--env", "TOKEN=${env}", "--", "sh", "-c", 'echo "$TOKEN" >&2; exit 3')
    # What looks like a secret is refused; the refusal does not repeat it.
    coffer("mcp", "add", "plain", "--env", "API_TOKEN=${env}", "--header", "a=b", "--", "true")
    added = json.loads(session.daemon.cli("client", "add", "phone", "--json").stdout)
    secrets["client"] = added["token"]
    secrets["daemon"] = session.daemon.token
    for server, tool in (("leaky", "proof"), ("leaky", "leak"), ("web", "err"), ("web", "e500"), ("leaky", "die")):
        coffer("mcp", "call", server, tool)
    proof = session.coffer("mcp", "call", "leaky", "proof", "--json")
    assert hashlib.sha256(secrets["env"].encode()).hexdigest() in proof.stdout, proof
    token = secrets["client"]
    assert b" 200 " in session.http(f"/key/{token}/mcp", "")
    assert b" 200 " in session.http("/mcp", token)
    for path in (f"/key/{token}", f"/key/{token}/nowhere", f"/key/{token}/groups/none/mcp", f"/key/{token[:-1]}/mcp"):
        session.http(path, "")
    session.http("/api/v1/resources", token)
    for broken in (f"POST /key/{token}/mcp HTTP/9.x\r\nX: {token}\r\n\r\n", f"/key/{token}/mcp\r\n\r\n"):
        session.http("", "", broken.encode())
        session.shown.popitem()  # what is no HTTP is quoted to its sender, and to nobody else
    nouns = [["mcp", "list"], ["mcp", "list", "--tree"], ["mcp", "invocations"], ["ps"], ["audit", "list"]]
    nouns += [["credential", "list"], ["client", "list"], ["client", "show", "phone"], ["daemon", "status"]]
    nouns += [["credential", "get", name] for name in ("env", "header", "url")]
    nouns += [
        [*words, name] for name in ("leaky", "web", "dead") for words in (["mcp", "show"], ["ps"], ["mcp", "logs"])
    ]
    for words in nouns:
        coffer(*words)
        coffer(*words, "--json")
    coffer("--verbose", "mcp", "call", "leaky", "leak")
    coffer("mcp", "test", "dead")
    coffer("daemon", "logs")
    coffer("doctor", "--json")
    coffer("backup")


def everything(session: Session) -> dict[str, bytes]:
    """Every place that is searched."""
    home = session.daemon.home
    return {**files(home), **tables(home / "coffer.db"), **processes(), **session.shown}


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_no_secret_is_anywhere_but_where_it_is_meant(
    make_daemon: Callable[..., Daemon], careless: ThreadingHTTPServer
) -> None:
    """K01, K02, K03: marked secrets in env, header, URL and tokens, at debug level, with upstreams that repeat them in
    every way they can: in no table, log, command line, environment, output, error or answer; and each upstream sees
    its own only."""
    daemon = make_daemon(flags=("--verbose",)).start()
    session = Session(daemon)
    # A header and a URL carry no quotes, and a URL no blanks.
    secrets = {"env": marked("env"), "header": marked("header"), "url": marked("url").replace('" ', "-")}
    use_everything(session, secrets, f"http://127.0.0.1:{careless.server_port}")
    rows = wait_until(lambda: found if len(found := daemon.invocations("leaky")) >= 4 else None)
    assert {row["status"] for row in rows} >= {"ok", "error"}
    places = everything(session)
    for pid in leaky_pids(session):
        assert b"TOKEN=mk-env-" in places.pop(f"{pid} environ")  # meant
    assert secrets["daemon"].encode() in places.pop("daemon.json")  # meant
    assert find(secrets, places) == []
    seen = "\n".join(careless.seen)  # type: ignore[attr-defined]
    assert secrets["header"] in seen and secrets["url"] in seen
    assert find({name: secrets[name] for name in ("env", "client", "daemon")}, {"web": seen.encode()}) == []
    control(session, secrets)


def control(session: Session, secrets: dict[str, str]) -> None:
    """The search finds a copy wherever one is planted: a file, a row, an argument, an environment, an output."""
    home = session.daemon.home
    secret = secrets["env"]
    (home / "logs" / "upstream-planted.log").write_text(f"token {secret[:24]}…\n")
    (home / "planted.json").write_text(json.dumps({"t": base64.b64encode(secret.encode()).decode()}))
    copy = home / "planted.db"
    shutil.copy(home / "coffer.db", copy)
    with contextlib.closing(sqlite3.connect(copy)) as connection:
        connection.execute("CREATE TABLE planted (text)")
        connection.execute("INSERT INTO planted VALUES (?)", (secrets["client"],))
        connection.commit()
    waits = [sys.executable, "-c", "input()", secrets["header"]]
    spy = subprocess.Popen(waits, env={"PLANTED": secrets["url"]}, stdin=subprocess.PIPE)
    try:
        wait_until(lambda: b"PLANTED" in Path(f"/proc/{spy.pid}/environ").read_bytes())
        session.shown["planted output"] = f"error: {secrets['daemon']}".encode()
        places = {**everything(session), **{f"copy: {key}": value for key, value in tables(copy).items()}}
        places.pop("daemon.json")
        found = set(find(secrets, places))
    finally:
        spy.communicate(b"\n")
    assert psutil.pid_exists(spy.pid) is False
    expected = {
        ("logs/upstream-planted.log", "env"),
        ("planted.json", "env"),
        ("planted.db", "client"),
        ("copy: table planted", "client"),
        (f"{spy.pid} cmdline", "header"),
        (f"{spy.pid} environ", "url"),
        ("planted output", "daemon"),
    }
    assert expected <= found
    assert {place for place, _ in found - expected} <= {f"{pid} environ" for pid in leaky_pids(session)}


def leaky_pids(session: Session) -> list[int]:
    """The one upstream that is meant to hold its secret."""
    return [one["pid"] for one in session.daemon.server("leaky")["upstreams"]]
