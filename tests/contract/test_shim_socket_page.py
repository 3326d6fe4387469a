"""``docs/shim-socket.md`` is the authority on the shim's socket: it names what the code has, and nothing else."""

import re
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from coffer_common import shimproto

PAGE = (Path(__file__).parents[2] / "docs" / "shim-socket.md").read_text()
LINES = {struct.__struct_config__.tag: struct for struct in get_args(shimproto.Control)}


def row(name: str) -> list[str]:
    (line,) = [line for line in PAGE.splitlines() if line.startswith(f"| `{name}` |")]
    return [cell.strip() for cell in line.strip("|").split(" | ")]


@pytest.mark.parametrize("name", LINES)
def test_each_line_and_its_members_stand_on_the_page(name: str) -> None:
    named = re.findall(r"`(\w+)`(?:: | int| text)", row(name)[2])
    assert named == [field.encode_name for field in msgspec.structs.fields(LINES[name])]


def test_no_other_line_stands_there() -> None:
    assert set(re.findall(r"^\| `(\w+)` \| (?:shim|daemon) \|", PAGE, re.MULTILINE)) == set(LINES)


def test_each_refusal_and_the_version_stand_on_the_page() -> None:
    reasons = PAGE.split("Reasons of `refused`:")[1].split("\n\n")[0]
    assert re.findall(r"`(\w+)`\s\(", reasons) == list(get_args(shimproto.Refusal))
    assert f"now **{shimproto.SHIM_PROTOCOL}**" in PAGE


def test_the_examples_are_valid() -> None:
    examples = re.findall(r'^(?:shim|daemon)\s+(\{"coffer".*?\})', PAGE, re.MULTILINE)
    assert [type(shimproto.decode(line.encode())).__name__ for line in examples] == ["Hello", "Welcome", "Goodbye"]
