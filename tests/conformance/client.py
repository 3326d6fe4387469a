"""The client of the client scenarios: the SDK's, thorough, with every capability that the protocol has.

It does at Coffer's endpoint what each scenario's mock waits to see behind Coffer. It judges nothing: the mock does.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import mcp_types as types
from mcp import Client
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from tests.support.clients import LEGACY

Object = dict[str, Any]
BY_TYPE: Object = {"string": "x", "integer": 0, "number": 0, "boolean": False, "object": {}, "array": [], "null": None}


async def answer_elicitation(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
    """Accept, with the form's defaults; where a field has none, with something of its type."""
    if not isinstance(params, types.ElicitRequestFormParams):
        return types.ElicitResult(action="accept")
    content: Object = {}
    required = params.requested_schema.get("required", [])
    for name, schema in params.requested_schema.get("properties", {}).items():
        if "default" in schema:
            content[name] = schema["default"]
        elif name in required:
            content[name] = True if schema.get("type") == "boolean" else BY_TYPE.get(schema.get("type"), "x")
    return types.ElicitResult(action="accept", content=content)


async def answer_sampling(context: Any, params: types.CreateMessageRequestParams) -> types.CreateMessageResult:
    """A fixed answer."""
    return types.CreateMessageResult(role="assistant", content=types.TextContent(type="text", text="ok"), model="none")


async def answer_roots(context: Any) -> types.ListRootsResult:
    """No roots."""
    return types.ListRootsResult(roots=[])


async def attempt(what: str, work: Awaitable[Any]) -> None:
    """Do it; a refusal is said and is not the end, since the mock judges what it saw."""
    try:
        await work
    except Exception as error:
        print(f"{what}: {error!r}", file=sys.stderr)


def arguments(schema: Mapping[str, Any]) -> Object:
    """The least that a tool's schema asks for."""
    properties = schema.get("properties", {})
    return {name: BY_TYPE.get(properties.get(name, {}).get("type"), "x") for name in schema.get("required", [])}


async def everything(client: Client, context: Object) -> None:
    """Call, get and read whatever is listed."""
    for tool in (await client.list_tools()).tools:
        await attempt(tool.name, client.call_tool(tool.name, arguments(tool.input_schema)))
    declared = client.server_capabilities
    if declared is not None and declared.prompts is not None:
        for prompt in (await client.list_prompts()).prompts:
            needed = {argument.name: "x" for argument in prompt.arguments or [] if argument.required}
            await attempt(prompt.name, client.get_prompt(prompt.name, needed))
    if declared is not None and declared.resources is not None:
        for resource in (await client.list_resources()).resources:
            await attempt(resource.uri, client.read_resource(resource.uri))


async def given_calls(client: Client, context: Object) -> None:
    """The calls that the scenario hands over."""
    await client.list_tools()
    for call in context.get("toolCalls", []):
        await attempt(call["name"], client.call_tool(call["name"], call.get("arguments") or {}))


async def addition(client: Client, context: Object) -> None:
    """One call with arguments."""
    await client.list_tools()
    await client.call_tool("add_numbers", {"a": 5, "b": 3})


async def echo_schema(client: Client, context: Object) -> None:
    """Send a tool's schema back as it came."""
    listed = {tool.name: tool for tool in (await client.list_tools()).tools}
    await client.call_tool("json_schema_echo", {"schema": listed["json_schema_2020_12_tool"].input_schema})


async def state_rounds(client: Client, context: Object) -> None:
    """Each of the tools that ask by `input_required`, with another call in between."""
    await client.list_tools()
    for name in ("test_mrtr_echo_state", "test_mrtr_unrelated", "test_mrtr_no_state", "test_mrtr_no_result_type"):
        await attempt(name, client.call_tool(name, {}))


Work = Callable[[Client, Object], Awaitable[None]]
SCENARIOS: dict[str, Work] = {
    "tools_call": addition,
    "request-metadata": addition,
    "json-schema-2020-12-preservation": echo_schema,
    "sep-2322-client-request-state": state_rounds,
    "http-custom-headers": given_calls,
}


async def run(url: str, scenario: str, wire: str, context: Object) -> None:
    """Do one scenario's work at an endpoint, in the era of `wire`."""
    mode = "auto" if wire in MODERN_PROTOCOL_VERSIONS else LEGACY
    async with Client(
        url,
        mode=mode,
        sampling_callback=answer_sampling,
        elicitation_callback=answer_elicitation,
        list_roots_callback=answer_roots,
    ) as client:
        await SCENARIOS.get(scenario, everything)(client, context)
