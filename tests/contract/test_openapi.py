"""The description of the management API against the API itself: what it promises is what is done.

Requests are made up from the description, right ones and wrong ones, and sent to a daemon that is thrown away.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks as rules

from coffer_supervisor.management import openapi, routes
from tests.support.daemon import Daemon
from tests.support.upstreams import fake

# What ends the daemon, changes its token or its backend, writes wherever it is told, or never ends.
NOT_SENT = (
    "daemon.shutdown",
    "daemon.rotate_token",
    "daemon.backup",
    "credentials.use_file",
    "events.follow",
)
RULES = (
    not_a_server_error,
    rules.status_code_conformance,
    rules.content_type_conformance,
    rules.response_schema_conformance,
    rules.negative_data_rejection,
)

schema = schemathesis.openapi.from_dict(openapi.document()).exclude(operation_id=list(NOT_SENT))
schema.config.generation.update(modes=list(schemathesis.GenerationMode))


@pytest.fixture(scope="module")
def served() -> Iterator[Daemon]:
    """A daemon with one server, one client and one secret."""
    daemon = Daemon().start()
    try:
        daemon.api("POST", "/credential-store/use-file")
        daemon.add_server("files", fake("--tools", "echo"))
        daemon.wait_state("files")
        daemon.api("PUT", "/credentials/secret", {"value": "x" * 20})
        daemon.api("POST", "/clients", {"name": "cursor"})
        yield daemon
    finally:
        daemon.close()


@schema.parametrize()
@settings(
    max_examples=8,
    derandomize=True,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_what_is_described_is_done(case: schemathesis.Case, served: Daemon) -> None:
    """Each operation answers right requests as described, and refuses wrong ones."""
    headers = {"X-Coffer-Token": served.token}
    case.call_and_validate(base_url=served.url(""), headers=headers, checks=list(RULES), timeout=20)


def test_every_operation_but_the_open_one_needs_its_token(served: Daemon) -> None:
    """Over TCP nobody without the daemon's token gets further than the door, whatever the operation."""
    for path, operations in openapi.document()["paths"].items():
        for method, operation in operations.items():
            connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=20)
            try:
                connection.request(method.upper(), path.replace("{", "").replace("}", ""))
                status = connection.getresponse().status
            finally:
                connection.close()
            assert status == (200 if operation.get("security") == [] else 401), operation["operationId"]


def test_every_route_is_described_once() -> None:
    """No two operations share a name, all have words for people, and every reference leads somewhere."""
    document = openapi.document()
    operations = [one for path in document["paths"].values() for one in path.values()]
    assert len({one["operationId"] for one in operations}) == len(operations) == len(routes.ROUTES)
    assert all(one["summary"] for one in operations)
    wanted: set[str] = set()

    def look(value: object) -> None:
        if isinstance(value, dict):
            wanted.update(ref.rpartition("/")[2] for key, ref in value.items() if key == "$ref")
            value = list(value.values())
        for item in value if isinstance(value, list) else ():
            look(item)

    look(document)
    assert wanted <= document["components"]["schemas"].keys()
    assert document["paths"]["/api/v1/daemon/status"]["get"]["security"] == []


def test_it_is_served_as_it_is(served: Daemon) -> None:
    """The document that is served is the one that the table of routes makes."""
    assert served.api("GET", "/openapi.json") == json.loads(json.dumps(openapi.document()))
