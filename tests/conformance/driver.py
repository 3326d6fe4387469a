"""What the suite starts as its client: `driver MOCK_URL`. Between the mock and the client stands Coffer.

It starts a daemon whose only upstream is the mock, runs the client against the pass-through endpoint, and stops the
daemon. So the mock judges what Coffer sends upstream. Where the mock wants a login, `logins` is the person who gives it
one. Its exit code says only whether that could be done.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import traceback
from typing import Any

from tests.conformance import client, logins
from tests.conformance.gateway import gateway


def main() -> int:
    """Run the scenario that the environment names."""
    url = sys.argv[-1]
    scenario = os.environ["MCP_CONFORMANCE_SCENARIO"]
    wire = os.environ["MCP_CONFORMANCE_PROTOCOL_VERSION"]
    context: dict[str, Any] = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    try:
        if scenario.startswith("auth/"):
            logins.drive(url, wire, context)
            return 0
        with gateway({"mock": {"transport": "http", "url": url}}, warmed=False) as urls:
            asyncio.run(client.run(urls["mock"], scenario, wire, context))
    except Exception:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
