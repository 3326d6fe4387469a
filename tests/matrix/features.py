"""One real exchange for each kind: a nonce goes up, another comes down, and both ends are looked at.

Each function fails with an AssertionError that says what was not seen. Names are the aggregate's.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import mcp_types as types
from mcp.client.subscriptions import ResourceUpdated, ToolsListChanged

from tests.fixtures.matrix_server import SAMPLE_TOKENS
from tests.matrix.stage import Backend, Seat, nonce
from tests.support.clients import json_of
from tests.support.wait import wait_for

Feature = Callable[[Seat, Backend], Awaitable[None]]
BOUND = 15.0


def logged(backend: Backend, what: str, came: str) -> str:
    """The upstream's own nonce of the one exchange that our nonce took part in."""
    lines = [line for line in backend.logged("exchange", came) if line["what"] == what]
    assert len(lines) == 1, f"the upstream saw {len(lines)} exchanges of {what} with {came}"
    return str(lines[0]["went"])


async def call(seat: Seat, backend: Backend, tool: str, came: str, **more: Any) -> Any:
    """Call a tool; the JSON of its answer."""
    result = await seat.client.call_tool(f"{backend.name}__{tool}", {"nonce": came}, **more)
    assert not result.is_error, f"the call failed: {result.content}"
    return json_of(result)


async def tools(seat: Seat, backend: Backend) -> None:
    """tools/list and tools/call."""
    names = [tool.name for tool in (await seat.client.list_tools()).tools]
    assert f"{backend.name}__exchange" in names
    came = nonce()
    assert (await call(seat, backend, "exchange", came))["went"] == logged(backend, "tools", came)


async def resources(seat: Seat, backend: Backend) -> None:
    """resources/templates/list and resources/read."""
    templates = [t.uri_template for t in (await seat.client.list_resource_templates()).resource_templates]
    template = f"coffer://{backend.name}/matrix://read/{{nonce}}"
    assert template in templates, f"{template} is not among {templates}"
    came = nonce()
    uri = template.replace("{nonce}", came)
    contents = (await seat.client.read_resource(uri)).contents[0]
    assert isinstance(contents, types.TextResourceContents)
    assert (str(contents.uri), contents.text) == (uri, logged(backend, "resources", came))


async def prompts(seat: Seat, backend: Backend) -> None:
    """prompts/list and prompts/get."""
    name = f"{backend.name}__exchange"
    assert name in [prompt.name for prompt in (await seat.client.list_prompts()).prompts]
    came = nonce()
    content = (await seat.client.get_prompt(name, {"nonce": came})).messages[0].content
    assert isinstance(content, types.TextContent)
    assert content.text == logged(backend, "prompts", came)


async def completion(seat: Seat, backend: Backend) -> None:
    """completion/complete, of a prompt's argument."""
    came = nonce()
    reference = types.PromptReference(type="ref/prompt", name=f"{backend.name}__exchange")
    answer = await seat.client.complete(reference, {"name": "nonce", "value": came})
    assert answer.completion.values == [logged(backend, "completion", came)]


async def progress(seat: Seat, backend: Backend) -> None:
    """notifications/progress, on the call's own stream, in order, before the answer."""
    came = nonce()
    seen: list[tuple[float, float | None, str | None]] = []

    async def on_progress(done: float, total: float | None, message: str | None) -> None:
        seen.append((done, total, message))

    await call(seat, backend, "progress", came, progress_callback=on_progress)
    went = logged(backend, "progress", came)
    wanted = [(step, 3, f"{went}-{step}") for step in (1, 2, 3)]
    await wait_for(lambda: len(seen) >= len(wanted), BOUND, lambda: f"progress {wanted}, seen {seen}")
    assert seen == wanted


async def cancel(seat: Seat, backend: Backend) -> None:
    """A call that the client gives up; the upstream hears of it."""
    came = nonce()
    seen: list[str | None] = []

    async def on_progress(done: float, total: float | None, message: str | None) -> None:
        seen.append(message)

    async with anyio.create_task_group() as group:

        async def hang() -> None:
            await call(seat, backend, "hang", came, progress_callback=on_progress)

        group.start_soon(hang)
        await wait_for(lambda: seen, BOUND, "the progress of a call that hangs")
        assert seen == [logged(backend, "cancel", came)]
        group.cancel_scope.cancel()
    await wait_for(lambda: backend.logged("interrupted", came), BOUND, "the upstream to hear that it was cancelled")


@asynccontextmanager
async def hearing(seat: Seat, **wanted: Any) -> AsyncIterator[Callable[[], list[Any]]]:
    """What the client is told from here on: over its listen stream, or over the stream that a session has anyway."""
    if seat.era == "legacy":
        seat.person.heard.clear()
        yield lambda: list(seat.person.heard)
        return
    events: list[Any] = []
    async with seat.client.listen(**wanted) as subscription, anyio.create_task_group() as group:

        async def collect() -> None:
            async for event in subscription:
                events.append(event)

        group.start_soon(collect)
        yield lambda: list(events)
        group.cancel_scope.cancel()


async def list_changed(seat: Seat, backend: Backend) -> None:
    """A tool comes; the client is told, lists again, and calls it."""
    came = nonce()
    async with hearing(seat, tools_list_changed=True) as heard:
        fresh = (await call(seat, backend, "change", came))["went"]
        kinds = (types.ToolListChangedNotification, ToolsListChanged)

        async def listed() -> bool:
            if not any(isinstance(notice, kinds) for notice in heard()):
                return False
            return f"{backend.name}__{fresh}" in [tool.name for tool in (await seat.client.list_tools()).tools]

        await wait_for(listed, BOUND, lambda: f"a notice of {fresh}; heard {heard()}")
    again = nonce()
    assert (await call(seat, backend, fresh, again))["went"] == logged(backend, "list_changed", again)


async def resource_update(seat: Seat, backend: Backend) -> None:
    """A subscription, one update of exactly that resource, and what it then holds."""
    came = nonce()
    uri = f"coffer://{backend.name}/matrix://watched/{came}"
    async with hearing(seat, resource_subscriptions=[uri]) as heard:
        if seat.era == "legacy":
            await seat.client.subscribe_resource(uri)
        await call(seat, backend, "touch", came)

        def updates() -> list[str]:
            found = [n for n in heard() if isinstance(n, types.ResourceUpdatedNotification | ResourceUpdated)]
            return [str(n.params.uri if isinstance(n, types.ResourceUpdatedNotification) else n.uri) for n in found]

        await wait_for(updates, BOUND, lambda: f"an update of {uri}; heard {heard()}")
        assert updates() == [uri]
    contents = (await seat.client.read_resource(uri)).contents[0]
    assert isinstance(contents, types.TextResourceContents)
    assert contents.text == logged(backend, "resources", came)
    if seat.era == "legacy":
        await seat.client.unsubscribe_resource(uri)


async def asked(seat: Seat, backend: Backend, kind: str) -> tuple[Any, str, Any, str]:
    """Call a tool that asks: the question as the client saw it, the client's answer, the upstream's, its nonce."""
    came = nonce()
    seat.person.asked.clear()
    result = await call(seat, backend, kind, came)
    assert [entry[0] for entry in seat.person.asked] == [kind], f"the client was asked {seat.person.asked}"
    _, params, mine = seat.person.asked[0]
    went = logged(backend, kind, came)
    answers = backend.logged("answered", came)
    assert len(answers) == 1, f"the upstream got {len(answers)} answers"
    assert result == {"went": went, "answer": answers[0]["answer"]}
    return params, mine, answers[0]["answer"], went


async def sampling(seat: Seat, backend: Backend) -> None:
    """sampling/createMessage."""
    params, mine, answer, went = await asked(seat, backend, "sampling")
    assert (params.messages[0].content.text, params.max_tokens) == (went, SAMPLE_TOKENS)
    assert answer["content"]["text"] == mine
    assert answer["model"] == "table"


async def elicitation_form(seat: Seat, backend: Backend) -> None:
    """elicitation/create with a form."""
    params, mine, answer, went = await asked(seat, backend, "form")
    assert params.message.endswith(went)
    assert backend.name in params.message, "on the aggregate the person is told which server asks"
    assert params.requested_schema["properties"]["answer"]["default"] == went
    assert answer == {"action": "accept", "content": {"answer": mine}}


async def elicitation_url(seat: Seat, backend: Backend) -> None:
    """elicitation/create with a link."""
    params, _, answer, went = await asked(seat, backend, "url")
    assert params.url == f"https://upstream.invalid/{went}"
    assert params.message.endswith(went)
    assert answer["action"] == "decline"


async def roots(seat: Seat, backend: Backend) -> None:
    """roots/list."""
    _, mine, answer, _ = await asked(seat, backend, "roots")
    assert json.dumps(answer).count(f"file:///{mine}") == 1


FEATURES: dict[str, Feature] = {
    "tools": tools,
    "resources": resources,
    "prompts": prompts,
    "completion": completion,
    "progress": progress,
    "cancel": cancel,
    "list_changed": list_changed,
    "resource update": resource_update,
    "sampling": sampling,
    "elicitation, form": elicitation_form,
    "elicitation, URL": elicitation_url,
    "roots": roots,
}
