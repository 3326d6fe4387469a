"""What leaves a worker as a message for people holds no secret, however an upstream spells it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import pytest

from coffer_common import frames
from coffer_worker.discretion import Discreet, spellings
from coffer_worker.log import MASK, UpstreamLog

SECRET = 'p"w\\d é/+ x'


class Outlet:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.sent: list[tuple[Any, bytes]] = []

    def send(self, frame: Any, payload: bytes = b"") -> None:
        self.sent.append((frame, payload))


@pytest.fixture
def log(tmp_path: Path) -> UpstreamLog:
    """The masker of an upstream that holds the secret."""
    return UpstreamLog(tmp_path / "x.log", spellings([SECRET, "abc"]))


def test_every_spelling_is_masked(log: UpstreamLog) -> None:
    """As it stands, in JSON of either kind, in a URL; a secret of three characters would mask half of every text."""
    ways = [SECRET, json.dumps(SECRET)[1:-1], json.dumps(SECRET, ensure_ascii=False)[1:-1], quote_plus(SECRET)]
    for way in ways:
        assert log.mask(f"x {way} y") == f"x {MASK} y"
    assert log.mask("abc") == "abc"


def test_a_secret_of_several_lines_is_masked_line_by_line(tmp_path: Path) -> None:
    """A private key on stderr comes a line at a time."""
    log = UpstreamLog(tmp_path / "x.log", spellings(["-----BEGIN\nMIIEabcdef\n--"]))
    assert log.mask("MIIEabcdef") == MASK
    assert log.mask("--") == "--"


def test_errors_and_states_are_masked_and_results_are_not(log: UpstreamLog) -> None:
    """An upstream's error and its last words; a tool's answer stays byte for byte."""
    outlet = Outlet()
    discreet = Discreet(outlet, log.mask)
    payload = json.dumps({"code": 1, "message": f"no {SECRET}", "data": [SECRET]}).encode()
    discreet.send(frames.Fail(1, -32000, f"no {SECRET}"), payload)
    discreet.send(frames.Reply(1), payload)
    discreet.send(frames.Notify("notifications/message"), payload)
    discreet.send(frames.Notify("notifications/resources/updated"), payload)
    plain = frames.Fail(2, 1, "plain")
    discreet.send(plain, b'{"code":1}')
    discreet.send(plain, b"\xff")
    fail, reply, said, updated, *rest = outlet.sent
    assert fail[0].message == f"no {MASK}"
    assert json.loads(fail[1]) == {"code": 1, "message": f"no {MASK}", "data": [MASK]}
    assert json.loads(said[1])["data"] == [MASK]
    assert reply[1] == updated[1] == payload
    assert rest == [(plain, b'{"code":1}'), (plain, b"\xff")]
    told = discreet.state(frames.State("failed", f"exit 1: {SECRET}", stderr=(SECRET, "plain")))
    assert (told.message, told.stderr) == (f"exit 1: {MASK}", (MASK, "plain"))
    well = frames.State("ready")
    assert discreet.state(well) is well
