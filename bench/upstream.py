"""The upstream that is measured through: a legacy MCP server on stdio that answers an echo in some 10 us.

One blocking read loop, no SDK, no asyncio. Tools: `echo(text)`, `big(n_bytes)`, and with --tools N as many more
descriptions of usual size, so that long lists can be measured.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import msgspec


class Params(msgspec.Struct):
    """The parts of any request's params that are looked at."""

    name: str = ""
    arguments: dict[str, Any] = {}
    protocolVersion: str = "2025-11-25"


class Request(msgspec.Struct):
    """A request or notification."""

    method: str = ""
    id: int | str | None = None
    params: Params = msgspec.field(default_factory=Params)


decode = msgspec.json.Decoder(Request).decode
encode = msgspec.json.encode


def describe(name: str, about: str, /, **properties: Any) -> dict[str, Any]:
    """A tool's description."""
    return {"name": name, "description": about, "inputSchema": {"type": "object", "properties": properties}}


def filler(n: int) -> dict[str, Any]:
    """A description of some 600 bytes, as a usual tool has."""
    return describe(
        f"find_documents_{n:03d}",
        f"Finds documents in shelf {n:03d} that contain all the given words. Newest first; each match comes with "
        "its title, its id and the first lines around the words.",
        words={"type": "string", "minLength": 1, "description": "What to look for; quote a phrase."},
        most={"type": "integer", "minimum": 1, "maximum": 200, "default": 25, "description": "Matches at most."},
        kind={"type": "string", "enum": ["letter", "report", "note", "any"], "default": "any"},
        since={"type": "string", "format": "date", "description": "Only documents from this day on."},
    )


class Server:
    """Answers one line at a time."""

    def __init__(self, fillers: int) -> None:
        tools = [
            describe("echo", "Answers with the text.", text={"type": "string"}),
            describe("big", "Answers with so many bytes of text.", n_bytes={"type": "integer"}),
            *(filler(n) for n in range(fillers)),
        ]
        self.listing = encode({"tools": tools})

    def answer(self, line: bytes) -> bytes:
        """The answer to a line, with its newline; nothing for notifications."""
        request = decode(line)
        if request.id is None:
            return b""
        body = self.result(request)
        if body is None:
            error = {"code": -32601, "message": f"Method not found: {request.method}"}
            return encode({"jsonrpc": "2.0", "id": request.id, "error": error}) + b"\n"
        return b'{"jsonrpc":"2.0","id":' + encode(request.id) + b',"result":' + body + b"}\n"

    def result(self, request: Request) -> bytes | None:
        """The result's JSON, or None where the method is unknown."""
        if request.method == "tools/call":
            arguments = request.params.arguments
            text = "x" * int(arguments["n_bytes"]) if request.params.name == "big" else arguments.get("text", "")
            return b'{"content":[{"type":"text","text":' + encode(text) + b'}],"isError":false}'
        if request.method == "tools/list":
            return self.listing
        if request.method == "initialize":
            return encode(
                {
                    "protocolVersion": request.params.protocolVersion,
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "bench", "version": "1"},
                }
            )
        return b"{}" if request.method == "ping" else None


def write_all(data: bytes) -> None:
    """Write it to stdout."""
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


def main() -> None:
    """Serve until end of file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tools", type=int, default=0, metavar="N", help="list N more tools")
    server = Server(parser.parse_args().tools)
    tail = b""
    while data := os.read(0, 1 << 18):
        *lines, tail = (tail + data).split(b"\n")
        out = b"".join(server.answer(line) for line in lines if line.strip())
        if out:
            write_all(out)


if __name__ == "__main__":
    main()
