"""One table of a TOML file is added, changed and removed; all else stays."""

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coffer_cli.clients import tomltext

CONFIG = '''\
# mine
model = "o9"   # the big one

[mcp_servers.files]
command = "npx"
args = [
  "-y",
]

# about profiles
[profiles.x]
text = """
[mcp_servers.coffer]
"""
'''
PATH = ("mcp_servers", "coffer")
TABLE: dict[str, Any] = {"command": "/bin/coffer-shim", "args": ["--group", "a"], "env": {"A.b": 'x"\x7f'}}


def test_adds_changes_and_removes() -> None:
    """D09: foreign tables, comments and formatting stay; removing gives back the old text."""
    made = tomltext.put(CONFIG.replace("[mcp_servers.coffer]\n", ""), PATH, TABLE)
    assert tomllib.loads(made)["mcp_servers"]["coffer"] == TABLE
    again = tomltext.put(made, PATH, {"command": "y"})
    assert tomllib.loads(again)["mcp_servers"]["coffer"] == {"command": "y"}
    assert tomltext.remove(again, PATH) == CONFIG.replace("[mcp_servers.coffer]\n", "")


def test_what_stands_behind_it_keeps_its_remarks() -> None:
    """D09: a remark above the next table belongs to that table."""
    text = '[mcp_servers.coffer]\ncommand = "x"\n\n# about y\n[y]\na = 1\n\n[[z]]\n'
    assert tomltext.remove(text, PATH) == "\n# about y\n[y]\na = 1\n\n[[z]]\n"
    assert tomltext.put(text, PATH, {"command": "q"}).endswith('command = "q"\n\n# about y\n[y]\na = 1\n\n[[z]]\n')


def test_unreadable_or_not_ours_to_change_is_refused() -> None:
    """D08: a broken file is refused with line and column; one that cannot be spliced safely is refused too."""
    with pytest.raises(tomltext.TomlError, match=r"^line 2, column \d+: "):
        tomltext.parse('a = 1\nb = "\n')
    with pytest.raises(tomltext.TomlError, match="by hand"):
        tomltext.remove('mcp_servers = {coffer = {command = "x"}}\n', PATH)
    with pytest.raises(tomltext.TomlError):
        tomltext.put('mcp_servers = {a = {command = "x"}}\n', PATH, {})
    with pytest.raises(tomltext.TomlError, match="no table"):
        tomltext.put("mcp_servers = 3\n", PATH, {"command": "x"})
    with pytest.raises(tomltext.TomlError):
        tomltext.put(CONFIG, PATH, {"command": "x"})
    with pytest.raises(tomltext.TomlError, match="by hand"):
        tomltext.put('text = """\n[mcp_servers.coffer]\nx = 1\n[other]\n"""\n', PATH, {"command": "x"})


@pytest.mark.parametrize("text", ["", "a = 1", "a = 1\n", "a = 1\r\n", "\ufeff", "[a]\nx = 1\n\n"])
def test_the_end_of_a_file(text: str) -> None:
    """Any end of a file takes a table; where there is none to remove, nothing changes."""
    made = tomltext.put(text, PATH, {"command": "x"})
    assert tomltext.parse(made)["mcp_servers"]["coffer"] == {"command": "x"}
    assert tomltext.remove(text, PATH) == text
    back = tomltext.remove(made, PATH)
    assert tomltext.parse(back) == tomltext.parse(text)


def test_lines_that_only_look_like_heads() -> None:
    """Lists over several lines hold lines in brackets; they open no table."""
    text = '[a]\nx = [\n[1],\n["mcp_servers", "coffer"],\n]\n'
    made = tomltext.put(text, PATH, {"command": "x"})
    assert tomltext.remove(made, PATH) == text


@given(
    st.dictionaries(st.text(max_size=6), st.text(max_size=8), max_size=3),
    st.lists(st.text(max_size=8), max_size=3),
    st.text(min_size=1, max_size=6),
)
def test_whatever_is_written_is_read_again(env: dict[str, str], args: list[str], name: str) -> None:
    """Any names and texts survive, and removing the table gives back the old text."""
    table: dict[str, Any] = {"command": "x", "args": args} | ({"env": env} if env else {})
    try:
        made = tomltext.put("a = 1\n", ("mcp_servers", name), table)
    except tomltext.TomlError:
        assert any("\ud800" <= one <= "\udfff" for one in str((env, args, name)))
        return
    assert tomllib.loads(made)["mcp_servers"][name] == table
    assert tomltext.remove(made, ("mcp_servers", name)) == "a = 1\n"
