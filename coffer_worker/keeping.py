"""The upstream's own secrets (what a login brought), kept by the supervisor.

Owns the questions LoadSecret and StoreSecret and their answers. Never keeps a secret itself.
"""

import asyncio
from collections.abc import Callable

from coffer_common import frames
from coffer_worker.outlet import Outlet

_SECONDS = 15.0


class NotKept(Exception):
    """The supervisor cannot load or store it; the text says why."""


class Changed(Exception):
    """Nothing was stored: somebody else has changed what was to be replaced."""


class Keeping:
    """``new_id`` numbers the questions."""

    def __init__(self, outlet: Outlet, new_id: Callable[[], int]) -> None:
        self._outlet, self._new_id = outlet, new_id
        self._waiting: dict[int, asyncio.Future[frames.Secret]] = {}

    def answered(self, frame: frames.Secret) -> None:
        """The supervisor's answer."""
        waiting = self._waiting.get(frame.corr)
        if waiting is not None and not waiting.done():
            waiting.set_result(frame)

    async def load(self) -> str:
        """The stored text; empty where there is none. Raises NotKept."""
        corr = self._new_id()
        return (await self._ask(corr, frames.LoadSecret(corr, frames.LOGIN_REF))).value

    async def store(self, value: str, over: str | None = None) -> None:
        """Returns once it is stored. ``over``: the text that it replaces (empty: there is none), where it may replace
        no other. Raises NotKept, and Changed."""
        corr = self._new_id()
        seal = "" if over is None else frames.secret_digest(over)
        if (await self._ask(corr, frames.StoreSecret(corr, frames.LOGIN_REF, value, seal))).changed:
            raise Changed

    async def _ask(self, corr: int, frame: frames.LoadSecret | frames.StoreSecret) -> frames.Secret:
        future: asyncio.Future[frames.Secret] = asyncio.get_running_loop().create_future()
        self._waiting[corr] = future
        try:
            self._outlet.send(frame)
            async with asyncio.timeout(_SECONDS):
                answer = await future
        except TimeoutError:
            raise NotKept(f"the secret store did not answer within {_SECONDS:g} s") from None
        finally:
            del self._waiting[corr]
        if answer.error:
            raise NotKept(answer.error)
        return answer
