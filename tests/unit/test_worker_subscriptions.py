"""Who wants which resource (R07)."""

from coffer_worker.core.subscriptions import Dropped, Subscriptions


def test_the_upstream_is_told_once_and_until_the_last_leaves() -> None:
    """R07."""
    table = Subscriptions()
    assert table.add(1, "a", "x:1")
    assert not table.add(1, "b", "x:1")
    assert not table.add(1, "b", "x:1")
    assert table.add(2, "b", "x:1")
    assert table.uris(1) == ("x:1",)
    assert table.count(1) == 1
    assert table.remove("a", "x:1") == []
    assert table.remove("nobody") == []
    assert table.remove("b", "x:2") == []
    assert table.remove("b") == [Dropped(1, "x:1"), Dropped(2, "x:1")]
    assert table.uris(1) == ()


def test_one_of_several_uris() -> None:
    table = Subscriptions()
    table.add(1, "a", "x:1")
    table.add(1, "a", "x:2")
    assert table.remove("a", "x:1") == [Dropped(1, "x:1")]
    assert table.uris(1) == ("x:2",)


def test_an_update_reaches_those_concerned() -> None:
    """An update may name a sub-resource of what was subscribed."""
    table = Subscriptions()
    table.add(1, "a", "file:///d")
    table.add(1, "b", "file:///d/e")
    table.add(1, "a", "file:///d/e")
    assert table.concerned(1, "file:///d/e") == ("b", "a")
    assert table.concerned(1, "file:///d/e/f") == ("b", "a")
    assert table.concerned(1, "file:///d/x") == ("a",)
    assert table.concerned(1, "other:1") == ("a", "b")
    assert table.concerned(2, "file:///d") == ()


def test_what_a_lost_connection_carried() -> None:
    table = Subscriptions()
    table.add(1, "a", "x:1")
    table.add(1, "b", "x:1")
    assert table.forget(1) == [("a", "x:1"), ("b", "x:1")]
    assert table.forget(1) == []
    assert table.count(1) == 0


def test_what_the_upstream_does_not_agree_to_is_nobodys() -> None:
    table = Subscriptions()
    table.add(1, "a", "x:1")
    table.add(1, "b", "x:1")
    table.add(1, "a", "x:2")
    table.give_up(1, "x:1")
    assert table.uris(1) == ("x:2",)
    assert (table.knows("a"), table.knows("b")) == (True, False)
    table.give_up(1, "x:2")
    table.give_up(2, "x:2")
    assert not table.knows("a")
    assert table.count(1) == 0
