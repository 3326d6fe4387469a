"""The first handshake of a client, tried with the very entry that stands in its configuration.

Owns the process it starts for that. Speaks ``initialize`` of revision 2025-06-18 (the base protocol's lifecycle).
"""

import json
import os
import select
import subprocess
import time
from typing import Any, Final

from coffer_common.version import VERSION

_SECONDS: Final = 60.0
_END_SECONDS: Final = 5.0
_MOST_BYTES: Final = 16 * 1024 * 1024
_REVISION: Final = "2025-06-18"


class HandshakeError(Exception):
    """The entry does not work; the message says why."""


def attempt(entry: dict[str, Any]) -> str:
    """Starts what ``entry`` names and greets it; who answered, for people. Raises HandshakeError."""
    # The client knows nothing of this shell's COFFER_HOME: the entry must carry it.
    environ = {key: value for key, value in os.environ.items() if key != "COFFER_HOME"} | entry.get("env", {})
    try:
        process = subprocess.Popen(
            [entry["command"], *entry.get("args", ())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environ,
        )
    except OSError as error:
        raise HandshakeError(f"{entry['command']} cannot be started: {error.strerror}") from error
    try:
        return _greet(process)
    finally:
        _end(process)


def _greet(process: subprocess.Popen[bytes]) -> str:
    assert process.stdin is not None
    params = {
        "protocolVersion": _REVISION,
        "capabilities": {},
        "clientInfo": {"name": "coffer-install", "version": VERSION},
    }
    wish = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    try:
        process.stdin.write(json.dumps(wish).encode() + b"\n")
        process.stdin.flush()
    except OSError:
        raise HandshakeError(_last_words(process)) from None
    line = _line(process)
    try:
        answer = json.loads(line)
        if "error" in answer:
            raise HandshakeError(f"it answered with an error: {answer['error'].get('message', '')}")
        info = answer["result"]["serverInfo"]
        return f"{info['name']} {info['version']}"
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise HandshakeError(f"its answer to initialize is none: {type(error).__name__}") from error


def _line(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout is not None
    deadline, held = time.monotonic() + _SECONDS, bytearray()
    while b"\n" not in held:
        ready, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            raise HandshakeError(f"it did not answer within {_SECONDS:.0f} s")
        chunk = os.read(process.stdout.fileno(), 65536)
        if not chunk:
            raise HandshakeError(_last_words(process))
        held += chunk
        if len(held) > _MOST_BYTES:
            raise HandshakeError("its answer does not end")
    return bytes(held.partition(b"\n")[0])


def _last_words(process: subprocess.Popen[bytes]) -> str:
    """Why it ended: its exit code and the end of what it said."""
    try:
        _, said = process.communicate(timeout=_END_SECONDS)
    except subprocess.TimeoutExpired:
        return "it closed its output and did not end"
    words = " ".join(said.decode(errors="replace").split())[-500:]
    return f"it ended with exit code {process.returncode}{': ' + words if words else ''}"


def _end(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            try:
                pipe.close()
            except OSError:
                pass  # it went away before it had read everything
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
