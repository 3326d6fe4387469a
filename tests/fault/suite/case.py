"""A case: what is broken, and how it is played on a stage."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from tests.fault.suite.stage import Stage

Play = Callable[[Stage], Awaitable[None]]
Kind = Literal["upstream", "client", "load", "coffer"]


@dataclass(frozen=True)
class Case:
    """``quick``: it is part of the short form. ``env``: the daemon needs these variables, so it has one of its own."""

    name: str
    kind: Kind
    play: Play
    quick: bool = False
    own_daemon: bool = False

    @property
    def id(self) -> str:
        """For a command line."""
        return self.name.replace(" ", "-").replace(",", "").lower()


class Cases(list[Case]):
    """The cases of one module, collected by a decorator."""

    def __call__(
        self, name: str, kind: Kind = "upstream", *, quick: bool = False, own_daemon: bool = False
    ) -> Callable[[Play], Play]:
        """Add the decorated function as a case."""

        def add(play: Play) -> Play:
            self.append(Case(name, kind, play, quick, own_daemon))
            return play

        return add
