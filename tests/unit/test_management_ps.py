"""How processes are named to an operator."""

import pytest

from coffer_supervisor.management.ps import _program


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ([], ""),
        ([""], ""),
        (["/usr/bin/node", "server.js"], "node"),
        (["/opt/My Tools/node", "server.js"], "node"),
        (["npm exec @scope/server /home/me/notes   "], "npm"),
        (["nginx: master process"], "nginx:"),
        (["python"], "python"),
    ],
)
def test_a_program_is_named_without_its_arguments(words: list[str], name: str) -> None:
    """A title that a program wrote over its own command line holds arguments, which may be private."""
    assert _program(words) == name
