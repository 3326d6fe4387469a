"""The ports the daemon may listen on."""

import pytest

from coffer_common import ports


@pytest.mark.parametrize(
    ("text", "found"),
    [("", range(8000, 8010)), ("8100-8109", range(8100, 8110)), (" 9000 ", range(9000, 9001))],
)
def test_the_ports_are_8000_to_8009_unless_the_environment_names_others(text: str, found: range) -> None:
    assert ports.port_range({"COFFER_PORTS": text}) == found
    assert ports.port_range({}) == ports.DEFAULT


@pytest.mark.parametrize("text", ["x", "80", "8100-8000", "8100-", "1-99999", "8000,8001"])
def test_what_names_no_ports_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ports.BadPorts, match="8100-8109"):
        ports.port_range({"COFFER_PORTS": text})
