"""Who wants to hear of which resource, per connection to the upstream.

Owns the counting: when an upstream must be told to begin or to stop, and to whom an update goes. Never sends. URIs are
the upstream's own. Source: MCP, Resources, Subscriptions (an update may name a sub-resource of what was subscribed).
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Dropped:
    """A URI that nobody wants any more on that connection."""

    conn: int
    uri: str


@dataclass(slots=True)
class Subscriptions:
    """Connection -> URI -> subscribers, each in the order in which they came."""

    _table: dict[int, dict[str, dict[str, None]]] = field(default_factory=dict)

    def add(self, conn: int, subscriber: str, uri: str) -> bool:
        """``subscriber`` wants ``uri``; True where it is the first on that connection."""
        uris = self._table.setdefault(conn, {})
        first = uri not in uris
        uris.setdefault(uri, {})[subscriber] = None
        return first

    def remove(self, subscriber: str, uri: str = "") -> list[Dropped]:
        """The reverse, everywhere; an empty ``uri`` means all of the subscriber's."""
        dropped: list[Dropped] = []
        for conn, uris in list(self._table.items()):
            for each in [uri] if uri else list(uris):
                wanted = uris.get(each)
                if wanted is not None and wanted.pop(subscriber, subscriber) is None and not wanted:
                    del uris[each]
                    dropped.append(Dropped(conn, each))
            if not uris:
                del self._table[conn]
        return dropped

    def give_up(self, conn: int, uri: str) -> None:
        """Nobody has ``uri`` there any more: the upstream did not agree to it."""
        uris = self._table.get(conn, {})
        uris.pop(uri, None)
        if not uris:
            self._table.pop(conn, None)

    def knows(self, subscriber: str) -> bool:
        """Whether anything is subscribed for ``subscriber``."""
        return any(subscriber in wanted for uris in self._table.values() for wanted in uris.values())

    def uris(self, conn: int) -> tuple[str, ...]:
        """What is subscribed on a connection."""
        return tuple(self._table.get(conn, ()))

    def count(self, conn: int) -> int:
        """How many URIs are subscribed on a connection."""
        return len(self._table.get(conn, ()))

    def forget(self, conn: int) -> list[tuple[str, str]]:
        """The connection is gone; (subscriber, URI) of all that it carried, to be subscribed anew."""
        uris = self._table.pop(conn, {})
        return [(subscriber, uri) for uri, wanted in uris.items() for subscriber in wanted]

    def concerned(self, conn: int, uri: str) -> tuple[str, ...]:
        """Who hears that ``uri`` changed: its subscribers; else those of the longest subscribed prefix; else all."""
        uris = self._table.get(conn, {})
        if uri in uris:
            return tuple(uris[uri])
        prefixes = [each for each in uris if uri.startswith(each)]
        if prefixes:
            return tuple(uris[max(prefixes, key=len)])
        return tuple(dict.fromkeys(subscriber for wanted in uris.values() for subscriber in wanted))
