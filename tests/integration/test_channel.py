"""The channel with a real peer at its other end: who may speak, what is dropped, what cannot be sent."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import pytest_asyncio
import zmq

from coffer_common import frames
from coffer_supervisor import channel as channel_module
from coffer_supervisor.channel import Channel, Peer
from coffer_supervisor.logins import Logins
from tests.support.wait import wait_for


class Worker:
    """The worker's two DEALERs, by hand."""

    def __init__(self, context: zmq.Context[Any], folder: Path, identity: str = "files.1") -> None:
        self.control, self.bulk = (context.socket(zmq.DEALER) for _ in range(2))
        for sock, name in ((self.control, "control"), (self.bulk, "bulk")):
            sock.setsockopt(zmq.IDENTITY, identity.encode())
            sock.setsockopt(zmq.LINGER, 0)
            sock.connect(f"ipc://{folder / name}")

    def send(self, sock: Any, frame: Any, *payload: bytes) -> None:
        sock.send_multipart([frames.encode(frame), *payload])

    def hello(self, secret: str = "s", **more: Any) -> None:
        said: dict[str, Any] = {"protocol": frames.PROTOCOL_VERSION, "name": "files", "incarnation": 1, "pid": 7} | more
        for sock in (self.control, self.bulk):
            self.send(sock, frames.Hello(secret=secret, **said))

    async def receive(self, sock: Any) -> tuple[Any, list[bytes]]:
        """The next frame from the supervisor, and its payload."""
        await wait_for(lambda: sock.poll(0))
        parts = sock.recv_multipart()
        return frames.decode_from_supervisor(parts[0]), parts[1:]

    def close(self) -> None:
        self.control.close()
        self.bulk.close()


class Bench:
    """A channel under test, what it reported, and a peer."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.context: zmq.Context[Any] = zmq.Context()
        self.greeted: list[Peer] = []
        self.unsent: list[tuple[Any, str]] = []
        self.heard: list[tuple[Any, bytes]] = []
        self.workers: list[Worker] = []
        self.channel = Channel()
        self.channel.callbacks(
            greeted=self.greeted.append, unsent=lambda peer, frame, trouble: self.unsent.append((frame, trouble))
        )
        self.channel.on(frames.Reply, self._heard)
        self.channel.on(frames.State, self._heard)
        self.channel.on(frames.Notify, self._raises)
        self.channel.open(f"ipc://{folder / 'control'}", f"ipc://{folder / 'bulk'}")
        self.peer = self.channel.expect("files", 1, "s")

    def _heard(self, peer: Peer, frame: Any, payload: bytes) -> None:
        self.heard.append((frame, payload))

    def _raises(self, peer: Peer, frame: Any, payload: bytes) -> None:
        raise ValueError("a bug of ours")

    def worker(self, identity: str = "files.1") -> Worker:
        worker = Worker(self.context, self.folder, identity)
        self.workers.append(worker)
        return worker

    async def greet(self) -> Worker:
        worker = self.worker()
        worker.hello()
        await wait_for(lambda: self.greeted)
        return worker

    def close(self) -> None:
        for worker in self.workers:
            worker.close()
        self.channel.close()
        self.context.term()


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="cf-", dir="/tmp") as name:
        yield Path(name)


@pytest_asyncio.fixture
async def bench(folder: Path) -> AsyncIterator[Bench]:
    bench = Bench(folder)
    yield bench
    bench.close()


async def test_a_worker_is_greeted_after_good_hellos_on_both_sockets(bench: Bench) -> None:
    worker = bench.worker()
    hello = frames.Hello(frames.PROTOCOL_VERSION, "files", 1, 7, "s")
    worker.send(worker.control, hello)
    worker.send(worker.control, frames.State("ready"))
    await wait_for(lambda: bench.channel.dropped)
    assert not bench.greeted, "one socket is not enough"
    assert not bench.heard, "and nothing is heard before"
    worker.send(worker.bulk, hello)
    await wait_for(lambda: bench.greeted)
    assert (bench.greeted[0].pid, bench.greeted[0].secret) == (7, "")
    assert "secret" not in repr(bench.greeted[0])


@pytest.mark.parametrize(
    "wrong", [{"secret": "guess"}, {"incarnation": 2}, {"name": "other"}, {"protocol": frames.PROTOCOL_VERSION + 1}]
)
async def test_a_wrong_hello_is_refused(bench: Bench, wrong: dict[str, Any]) -> None:
    """Hello carries a one-time secret that the supervisor gave that incarnation."""
    bench.worker().hello(**wrong)
    await wait_for(lambda: bench.channel.dropped == 2)
    assert not bench.greeted


async def test_the_secret_is_good_for_one_hello(bench: Bench) -> None:
    worker = await bench.greet()
    worker.hello()
    await wait_for(lambda: bench.channel.dropped == 2)
    assert len(bench.greeted) == 1


async def test_frames_arrive_whole_in_order_with_their_payload(bench: Bench) -> None:
    worker = await bench.greet()
    for number in range(500):
        worker.send(worker.bulk, frames.Reply(number), b"%d" % number)
    worker.send(worker.control, frames.State("ready"))
    await wait_for(lambda: len(bench.heard) == 501)
    replies = [(frame.corr, payload) for frame, payload in bench.heard if isinstance(frame, frames.Reply)]
    assert replies == [(n, b"%d" % n) for n in range(500)]
    assert (frames.State("ready"), b"") in bench.heard


async def test_what_is_sent_takes_the_socket_of_its_kind(bench: Bench) -> None:
    """Control never stands behind bulk."""
    worker = await bench.greet()
    big = b"x" * 300_000
    bench.channel.send(bench.peer, frames.Refresh(1))
    bench.channel.send(bench.peer, frames.Answer(2), big)
    assert await worker.receive(worker.control) == (frames.Refresh(1), [])
    assert await worker.receive(worker.bulk) == (frames.Answer(2), [big])


async def test_strangers_old_incarnations_and_rubbish_are_dropped_and_counted(bench: Bench) -> None:
    """Frames of an older incarnation are counted and dropped; nothing of it ends the reading."""
    worker = await bench.greet()
    stranger = bench.worker("nobody.9")
    stranger.send(stranger.bulk, frames.Reply(1))
    worker.bulk.send_multipart([b"\xc1rubbish"])
    worker.bulk.send_multipart([b""])
    worker.send(worker.bulk, frames.Progress(1))
    await wait_for(lambda: bench.channel.dropped == 4)
    worker.send(worker.bulk, frames.Notify("x"))
    worker.send(worker.bulk, frames.Reply(5), b"{}", b"a part too many")
    worker.send(worker.bulk, frames.Reply(6), b"{}")
    await wait_for(lambda: len(bench.heard) == 2)
    bench.channel.forget(bench.peer)
    worker.send(worker.bulk, frames.Reply(7))
    await wait_for(lambda: bench.channel.dropped == 5)
    assert [frame.corr for frame, _ in bench.heard] == [5, 6]


async def test_a_frame_for_nobody_is_reported_at_once(bench: Bench) -> None:
    bench.channel.send(bench.peer, frames.Dump(1))
    await wait_for(lambda: bench.unsent)
    assert bench.unsent == [(frames.Dump(1), "gone")]


async def test_a_frame_that_cannot_be_written_fails_alone(bench: Bench) -> None:
    """Half a surrogate pair, say, is no text that UTF-8 carries: what follows is neither held up nor spoilt."""
    worker = await bench.greet()
    unfit = frames.Unsubscribe(1, "\udcff")
    bench.channel.send(bench.peer, unfit)
    bench.channel.send(bench.peer, frames.Answer(2), b"{}")
    assert await worker.receive(worker.bulk) == (frames.Answer(2), [b"{}"])
    assert bench.unsent == [(unfit, "unfit")]


async def test_a_peer_that_reads_nothing_fails_what_is_too_much_and_no_more(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queues are bounded: a full one fails that frame only, and sending never blocks."""
    monkeypatch.setattr(channel_module, "SEND_MESSAGES", 4)
    bench = Bench(folder)
    try:
        worker = await bench.greet()
        worker.bulk.setsockopt(zmq.RCVHWM, 1)
        payload = b"x" * 1_000_000
        for number in range(1200):
            bench.channel.send(bench.peer, frames.Answer(number), payload)
        await wait_for(lambda: bench.unsent)
        assert {trouble for _, trouble in bench.unsent} == {"busy"}
        unsent = {frame.ask for frame, _ in bench.unsent}
        got = [(await worker.receive(worker.bulk))[0].ask for _ in range(1200 - len(unsent))]
        assert got == [n for n in range(1200) if n not in unsent], "the others arrive, in order"
    finally:
        bench.close()


async def test_a_large_result_is_handed_on_where_it_was_received(bench: Bench) -> None:
    """It is not copied on the loop, whatever else is; small payloads, and those of other frames, are plain bytes."""
    worker = await bench.greet()
    large = b"x" * 1_000_000
    for frame, payload in (
        (frames.Reply(1), b"{}"),
        (frames.Reply(2), large),
        (frames.State("ready"), large),
    ):
        worker.send(worker.bulk, frame, payload)
    await wait_for(lambda: len(bench.heard) == 3)
    assert [type(payload) for _, payload in bench.heard] == [bytes, memoryview, bytes]
    assert [bytes(payload) for _, payload in bench.heard] == [b"{}", large, large]


async def test_a_worker_is_answered_when_its_secret_meets_a_fault(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """It would wait in vain otherwise; neither the answer nor the log tells more than what kind of fault it was."""

    class Faulty:
        async def get(self, name: str) -> str:
            raise KeyError("a secret")

    Logins(cast(Any, None), bench.channel, cast(Any, Faulty()), 1)
    worker = await bench.greet()
    worker.send(worker.control, frames.LoadSecret(5, "oauth"))
    answer, _ = await worker.receive(worker.control)
    assert answer == frames.Secret(5, "", "Coffer itself failed in it: KeyError")
    assert "KeyError" in caplog.text
    assert "a secret" not in caplog.text
