"""How people's words on the command line become configuration."""

import inspect
from dataclasses import dataclass
from typing import Any

import pytest

from coffer_cli import options, state
from coffer_cli.commands import mcp_config, mcp_tools
from coffer_cli.errors import CliError
from coffer_common import exits


def test_a_value_may_hold_equals_signs_and_nothing() -> None:
    assert options.pairs(["A=b=c", "EMPTY="], "--env") == {"A": "b=c", "EMPTY": ""}


@pytest.mark.parametrize("word", ["A", "=b", ""])
def test_what_is_no_pair_is_refused_without_repeating_it(word: str) -> None:
    """K02: what a person typed there may be a secret."""
    with pytest.raises(CliError) as caught:
        options.pairs([word], "--header")
    assert caught.value.code == exits.USAGE
    assert "Authorization=Bearer ${my-token}" in caught.value.hint


def test_limits_take_short_names_units_and_off() -> None:
    found = options.limits(["start=10m", "line=128M", "total=off", "max-calls=5", "idle_seconds=1.5", "max-rss=500M"])
    assert found == {
        "start_seconds": 600.0,
        "line_bytes": 128 * 1024 * 1024,
        "total_seconds": None,
        "in_flight": 5,
        "idle_seconds": 1.5,
        "max_rss_bytes": 500 * 1024 * 1024,
    }


@pytest.mark.parametrize(
    ("text", "size"),
    [(f"64{unit}", 64 * 1024) for unit in ("k", "K", "KB", "KiB", "kB")]
    + [("2M", 2 << 20), ("2MiB", 2 << 20), ("1G", 1 << 30), ("1GB", 1 << 30), ("1 GiB", 1 << 30), ("100B", 100)],
)
def test_sizes_take_every_usual_spelling(text: str, size: int) -> None:
    assert options.limits([f"line={text}"]) == {"line_bytes": size}


@pytest.mark.parametrize("word", ["start=fast", "colour=3", "start="])
def test_a_limit_that_is_none_is_refused(word: str) -> None:
    """L11: when it is configured, not when it is reached."""
    with pytest.raises(CliError) as caught:
        options.limits([word])
    assert caught.value.code == exits.USAGE


def test_flags_for_every_command_are_taken_up_to_the_servers_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COFFER_VERBOSE", raising=False)
    monkeypatch.setenv("COFFER_NO_SPAWN", "0")
    assert not state.verbose()
    assert not state.no_spawn()
    left = state.take_flags(["mcp", "add", "x", "--no-spawn", "--", "server", "--verbose"])
    assert left == ["mcp", "add", "x", "--", "server", "--verbose"]
    assert state.no_spawn()
    assert not state.verbose()
    assert state.take_flags(["--verbose", "ps"]) == ["ps"]
    assert state.verbose()


@pytest.mark.parametrize(
    ("text", "raw"),
    [
        ("3", b"3"),
        ("1e2", b"1e2"),
        ("12345678901234567890123", b"12345678901234567890123"),
        ("true", b"true"),
        ("[1]", b"[1]"),
        ("/nope", b'"/nope"'),
        ("UTC", b'"UTC"'),
        ("", b'""'),
        ('"3"', b'"3"'),
    ],
)
def test_arguments_are_json_where_they_can_be_and_text_otherwise(text: str, raw: bytes) -> None:
    assert bytes(mcp_tools._arguments([f"a={text}"], None)) == b'{"a":' + raw + b"}"


def test_whole_arguments_are_passed_on_as_they_are() -> None:
    assert bytes(mcp_tools._arguments([], '{"a": 1e2}')) == b'{"a": 1e2}'
    assert bytes(mcp_tools._arguments(["b=2"], '{"a": 1e2}')) == b'{"a":1e2,"b":2}'
    with pytest.raises(CliError):
        mcp_tools._arguments([], "[1]")


def test_a_command_relative_to_the_person_is_made_absolute(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P17: `./s.sh` means the file the person sees, whatever the daemon's working directory is."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.sh").write_text("")
    assert mcp_config._located("./s.sh") == str(tmp_path / "s.sh")
    assert mcp_config._located("npx") == "npx"
    assert mcp_config._located("~/s.sh") == "~/s.sh"
    assert mcp_config._located("./absent.sh") == "./absent.sh"
    assert mcp_config._directory("sub") == str(tmp_path / "sub")
    assert mcp_config._directory("~/p") == "~/p"


def test_what_is_given_about_a_server_becomes_its_configuration() -> None:
    """Only what was given; caps are limits; what does not go together is refused."""
    given = mcp_config.ServerOptions(
        env=["A=1"], per_project=False, limit=["start=60"], max_rss="500M", max_calls="3", progress=False
    )
    assert given.new("x", ["npx", "-y"]) == {
        "transport": "stdio",
        "command": "npx",
        "args": ["-y"],
        "env": {"A": "1"},
        "per_project": False,
        "limits": {"start_seconds": 60.0, "max_rss_bytes": 500 * 1024**2, "in_flight": 3},
        "forward_progress": False,
    }
    remote = mcp_config.ServerOptions(url="https://h/mcp", header=["X-A=b"])
    assert remote.new("x", []) == {"transport": "http", "url": "https://h/mcp", "headers": {"X-A": "b"}}
    for given, command in (
        (mcp_config.ServerOptions(), []),
        (mcp_config.ServerOptions(url="https://h"), ["npx"]),
        (mcp_config.ServerOptions(header=["X=y"]), ["npx"]),
        (mcp_config.ServerOptions(url="https://h", cwd="/"), []),
    ):
        with pytest.raises(CliError):
            given.new("x", command)


def test_a_change_of_a_server_is_a_merge_patch() -> None:
    """A command brings its arguments, even none; what is taken away is null."""
    given = mcp_config.ServerOptions(env=["A=1"])
    assert given.patch(["npx"], ["B"], ["X-Y"]) == {
        "command": "npx",
        "args": [],
        "env": {"A": "1", "B": None},
        "headers": {"X-Y": None},
    }
    assert mcp_config.ServerOptions(description="mine").patch([], [], []) == {}


def test_a_dataclass_of_options_spreads_into_options() -> None:
    """Each field is a parameter of the command, in the place of the one that takes them all."""
    seen: list[Any] = []

    @dataclass
    class Both:
        colour: str | None = None
        size: int = 3

    @options.spread(Both)
    def command(name: str, *, options: Both, quiet: bool = False) -> None:
        seen.append((name, options, quiet))

    assert list(inspect.signature(command).parameters) == ["name", "colour", "size", "quiet"]
    command(name="a", colour="red", size=4, quiet=True)
    assert seen == [("a", Both("red", 4), True)]
