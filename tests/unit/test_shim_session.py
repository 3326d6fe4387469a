"""What is repeated with the next daemon, and what a re-opened listen stream is told."""

import json

from msgspec import Raw

from coffer_cli.shim_session import Acknowledged, Session, acknowledged, changes

RESULT = Raw(b'{"protocolVersion":"2025-06-18","capabilities":{"tools":{"listChanged":true},"prompts":{}}}')


def opened() -> Session:
    session = Session(Raw(b'{"protocolVersion":"2025-06-18"}'))
    session.note("initialize", session.params, RESULT)
    return session


def test_the_handshake_is_the_client_s_own() -> None:
    session = opened()
    assert (session.answered, session.revision) == (True, "2025-06-18")
    sent = json.loads(session.reopen())
    assert sent["method"] == "initialize"
    assert sent["params"] == {"protocolVersion": "2025-06-18"}
    assert session.owns(("text", sent["id"]))
    assert session.handled(("text", sent["id"]))
    assert not session.owns(("text", sent["id"]))
    assert session.resume() == []


def test_what_the_client_set_up_is_set_up_again() -> None:
    session = opened()
    session.initialized = b"INITIALIZED"
    session.note("resources/subscribe", Raw(b'{"uri":"a:1"}'), Raw(b"{}"))
    session.note("resources/subscribe", Raw(b'{"uri":"a:2"}'), Raw(b"{}"))
    session.note("resources/unsubscribe", Raw(b'{"uri":"a:1"}'), Raw(b"{}"))
    session.note("resources/unsubscribe", Raw(b"{}"), Raw(b"{}"))
    session.note("logging/setLevel", Raw(b'{"level":"info"}'), Raw(b"{}"))
    session.note("tools/call", Raw(b"{}"), Raw(b"{}"))
    first, *rest = session.resume()
    assert first == b"INITIALIZED"
    sent = [json.loads(line) for line in rest]
    assert [(m["method"], m["params"]) for m in sent] == [
        ("logging/setLevel", {"level": "info"}),
        ("resources/subscribe", {"uri": "a:2"}),
    ]
    assert all(session.owns(("text", m["id"])) for m in sent)
    assert not session.handled(("text", sent[0]["id"]))
    session.closed()
    assert not session.owns(("text", sent[1]["id"]))


def test_answers_of_others_are_not_its_own() -> None:
    session = opened()
    assert not session.owns(None)
    assert not session.owns(("number", "1"))
    assert not session.handled(None)


def test_only_declared_lists_are_announced() -> None:
    assert [json.loads(line)["method"] for line in opened().list_changes()] == ["notifications/tools/list_changed"]


def test_a_reopened_listen_is_told_what_it_was_acknowledged_for() -> None:
    filter_ = b'{"notifications":{"promptsListChanged":true,"toolsListChanged":false,"resourceSubscriptions":["a:1"]}}'
    sent = [json.loads(line) for line in changes(b'"7"', acknowledged(Raw(filter_)))]
    meta = {"io.modelcontextprotocol/subscriptionId": "7"}
    assert [(m["method"], m["params"]) for m in sent] == [
        ("notifications/prompts/list_changed", {"_meta": meta}),
        ("notifications/resources/updated", {"uri": "a:1", "_meta": meta}),
    ]
    assert changes(b"7", Acknowledged()) == []


def test_an_acknowledgement_that_is_not_understood_promises_nothing() -> None:
    assert acknowledged(Raw(b'{"notifications":[]}')) == Acknowledged()
    assert acknowledged(Raw(b"{}")) == Acknowledged()
