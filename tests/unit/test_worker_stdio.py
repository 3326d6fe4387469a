"""The stdio pipe's end: in whatever order exit and ends of output arrive, the last words are quoted."""

from itertools import permutations
from pathlib import Path

import pytest

from coffer_worker.core.framing import TooLong
from coffer_worker.log import UpstreamLog
from coffer_worker.upstream.pipe import Gone
from coffer_worker.upstream.stdio import StdioPipe
from tests.support.wait import wait_for


class Heard:
    """A receiver that only keeps how it ended."""

    def __init__(self) -> None:
        self.ends: list[Gone] = []

    def line(self, line: bytes) -> None:
        raise AssertionError(line)

    def too_long(self, found: TooLong) -> None:
        raise AssertionError(found)

    def __getattr__(self, name: str) -> object:
        raise AssertionError(f"a pipe of a process that said nothing called {name}")

    def closed(self, gone: Gone) -> None:
        self.ends.append(gone)


@pytest.mark.parametrize("order", list(permutations(("exit", "stdout", "stderr"))))
async def test_the_last_words_are_quoted_whatever_ends_first(tmp_path: Path, order: tuple[str, ...]) -> None:
    """P09: a server that dies at start is reported with its exit code and the last lines of its stderr."""
    heard, log = Heard(), UpstreamLog(tmp_path / "log")
    pipe = StdioPipe("up", heard, log=log, line_bytes=1000)  # type: ignore[arg-type]
    for what in order:
        match what:
            case "exit":
                pipe.exited(1)
            case "stdout":
                pipe.stdout_closed()
            case _:
                pipe.stderr(b"Error: API_KEY missing\n")
                pipe.stderr_closed()
    await wait_for(lambda: heard.ends)
    log.close()
    assert len(heard.ends) == 1
    assert heard.ends[0].message == (
        "Upstream 'up' exited with code 1. The last lines of its stderr: Error: API_KEY missing"
    )
    assert heard.ends[0].stderr == ("Error: API_KEY missing",)


async def test_a_held_stderr_delays_the_end_only_so_long(tmp_path: Path) -> None:
    """P08: an end is reported although something that escaped holds the process's stderr open for ever."""
    heard, log = Heard(), UpstreamLog(tmp_path / "log")
    pipe = StdioPipe("up", heard, log=log, line_bytes=1000)  # type: ignore[arg-type]
    pipe.exited(-9)
    pipe.stdout_closed()
    await wait_for(lambda: heard.ends)
    assert heard.ends[0].message == "Upstream 'up' was killed by SIGKILL"
    pipe.stderr_closed()
    assert len(heard.ends) == 1
