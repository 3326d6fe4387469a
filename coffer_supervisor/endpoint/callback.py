"""The page on which a person's browser ends after a login.

Owns that page: fixed words, nothing of the request in it. Its guard is the single-use ``state``, not a token.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from aiohttp import web

Callback = Callable[[Mapping[str, str]], Awaitable[tuple[bool, str]]]

_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_PAGE: Final = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>Coffer</title>'
    '<body style="font-family:sans-serif;margin:4em auto;max-width:32em"><h1>{}</h1><p>{}</p></body></html>\n'
)


async def answer(request: web.BaseRequest, callback: Callback) -> web.Response:
    """Take what the browser brought, and say how it went."""
    if request.method != "GET":
        return web.Response(status=405, headers={**_HEADERS, "Allow": "GET"})
    query = request.rel_url.query
    if any(len(query.getall(key)) != 1 for key in query):
        return _page(400, "This is no answer to a login", "Begin again with: coffer mcp login NAME")
    well, server = await callback(query)
    if not server:
        return _page(400, "Nobody waits for this login", "It is over, or was never begun: coffer mcp login NAME")
    if not well:
        return _page(200, f"No login to {server}", "Your terminal says why. You may close this page.")
    return _page(200, f"You are logged in to {server}", "You may close this page.")


def _page(status: int, title: str, text: str) -> web.Response:
    return web.Response(status=status, text=_PAGE.format(title, text), content_type="text/html", headers=_HEADERS)
