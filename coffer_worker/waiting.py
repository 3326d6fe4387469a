"""Who waits for a connection: for one that is being opened, or for the upstream to be there at all.

Owns the queues and the one answer that each waiter gets. Never opens or chooses a connection.
"""

from collections.abc import Callable
from dataclasses import dataclass

from coffer_common.frames import Caller
from coffer_worker.core.pool import Key, Member
from coffer_worker.core.relay import Refusal
from coffer_worker.upstream.connection import Connection


@dataclass(slots=True, eq=False)
class Waiter:
    """Someone who needs a connection. Exactly one of the two is called, unless it is withdrawn."""

    caller: Caller
    ready: Callable[[Connection, Member], None]
    refuse: Callable[[Refusal], None]
    call: bool = False
    withdrawn: bool = False


class Waiting:
    """The waiters of one upstream, in the order in which they came."""

    def __init__(self) -> None:
        self._joined: dict[Key, list[Waiter]] = {}
        self._held: list[Waiter] = []

    def join(self, key: Key, waiter: Waiter) -> None:
        """It waits for the connection of that key, which is being opened."""
        self._joined.setdefault(key, []).append(waiter)

    def hold(self, waiter: Waiter) -> None:
        """It waits for the next try, whatever comes of that."""
        self._held.append(waiter)

    def take(self, key: Key) -> list[Waiter]:
        """Those who waited for that key; they do no more."""
        return self._joined.pop(key, [])

    def take_held(self) -> list[Waiter]:
        """Those who were held; they are no more."""
        held, self._held = self._held, []
        return held

    def take_all(self) -> list[Waiter]:
        """Everyone."""
        joined, self._joined = self._joined, {}
        return [*self.take_held(), *(waiter for waiters in joined.values() for waiter in waiters)]


def refuse(waiter: Waiter, refusal: Refusal) -> None:
    """Tell it that there will be none, unless it wants none any more."""
    if not waiter.withdrawn:
        waiter.withdrawn = True
        waiter.refuse(refusal)
