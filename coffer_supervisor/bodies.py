"""The pieces of a request's body as they arrive, with a bound on how long one may be waited for.

Owns that bound. How large a body may be is the reader's to say.
"""

import asyncio
from typing import Final

from aiohttp import StreamReader

PIECE_SECONDS: Final = 30.0
"""How long a body may bring nothing."""


class BodyTooSlow(Exception):
    """Nothing more of a body came in time."""


async def piece(content: StreamReader, seconds: float = PIECE_SECONDS) -> bytes:
    """The next bytes, empty at the end. Raises BodyTooSlow; of aiohttp's RequestPayloadError, ConnectionError."""
    ready = content.read_nowait()
    if ready or content.is_eof():
        return ready
    try:
        async with asyncio.timeout(seconds):
            return await content.readany()
    except TimeoutError:
        raise BodyTooSlow(f"nothing more of the request's body came for {seconds:g} s") from None
