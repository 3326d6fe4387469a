"""Frames: what is encoded comes back, old peers understand new fields, unknown frames are refused."""

import typing

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coffer_common import frames
from coffer_common.resources import StdioServer

FROM_SUPERVISOR = typing.get_args(frames.FromSupervisor)
FROM_WORKER = typing.get_args(frames.FromWorker)

CALLERS = st.builds(frames.Caller, revision=st.sampled_from(["2025-11-25", "2026-07-28"]))
SERVERS = st.builds(StdioServer, command=st.text(min_size=1), args=st.tuples(st.text()))


def built(kind: type) -> st.SearchStrategy[object]:
    known: dict[str, st.SearchStrategy[object]] = {"caller": CALLERS, "config": SERVERS}
    for field in msgspec.structs.fields(kind):
        if field.type is int:
            known[field.name] = st.integers(0, 2**63 - 1)
        if field.type is float:
            known[field.name] = st.floats(allow_nan=False)  # a NaN equals nothing, itself included
    names = {field.name for field in msgspec.structs.fields(kind)}
    return st.builds(kind, **{name: strategy for name, strategy in known.items() if name in names})


@given(st.one_of([built(kind) for kind in FROM_SUPERVISOR]))
def test_frames_from_the_supervisor_survive_the_wire(frame: object) -> None:
    assert frames.decode_from_supervisor(frames.encode(frame)) == frame


@given(st.one_of([built(kind) for kind in FROM_WORKER]))
def test_frames_from_the_worker_survive_the_wire(frame: object) -> None:
    assert frames.decode_from_worker(frames.encode(frame)) == frame


def test_a_field_added_later_does_not_disturb_an_older_peer() -> None:
    assert frames.decode_from_worker(msgspec.msgpack.encode(["progress", 7, "later"])) == frames.Progress(7)


@pytest.mark.parametrize("data", [b"", b"\xc1", msgspec.msgpack.encode(["nonsense", 1])])
def test_what_is_no_frame_is_refused(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        frames.decode_from_worker(data)


@pytest.mark.parametrize(
    ("entry", "forms"),
    [
        (frames.CatalogueEntry("tool", "k", "s__k", b"1"), [b"1", b"1", b"1", b"1"]),
        (frames.CatalogueEntry("tool", "k", "s__k", b"1", b"2"), [b"1", b"2", b"1", b"2"]),
        (frames.CatalogueEntry("tool", "k", "s__k", b"1", b"2", b"3"), [b"1", b"2", b"3", b"2"]),
        (frames.CatalogueEntry("tool", "k", "s__k", b"1", b"2", b"3", b"4"), [b"1", b"2", b"3", b"4"]),
        (frames.CatalogueEntry("tool", "k", "s__k", b"1", b"2", b"", b""), [b"1", b"2", b"", b""]),
    ],
)
def test_an_entry_gives_the_bytes_of_each_naming_and_era(entry: frames.CatalogueEntry, forms: list[bytes]) -> None:
    assert [
        entry.form("raw", "legacy"),
        entry.form("prefixed", "legacy"),
        entry.form("raw", "modern"),
        entry.form("prefixed", "modern"),
    ] == forms


def test_the_era_of_a_caller_is_that_of_its_revision() -> None:
    assert frames.Caller("s", "p", "/mcp", "raw", "2026-07-28", "http").era == "modern"
    assert frames.Caller("s", "p", "/mcp", "raw", "2025-06-18", "shim").era == "legacy"


def test_control_and_bulk_divide_all_frames() -> None:
    """A frame that must not wait behind bulk is control; Hello goes on both."""
    assert set(frames.CONTROL) <= {*FROM_SUPERVISOR, *FROM_WORKER}
    assert frames.Call not in frames.CONTROL
    assert frames.Reply not in frames.CONTROL
