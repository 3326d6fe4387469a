"""Other programs' files on a real disk: replaced whole, never over somebody else's change."""

import os
from pathlib import Path

import pytest

from coffer_cli.clients import files, handshake, records
from coffer_cli.errors import CliError
from coffer_common import exits
from coffer_common.paths import Home


def test_a_writer_at_the_same_moment_is_not_overwritten(tmp_path: Path) -> None:
    """D09: what another program wrote between reading and replacing is read again, and kept."""
    path = tmp_path / "a.json"
    path.write_text("one")
    seen: list[str] = []

    def edit(text: str) -> str:
        seen.append(text)
        if len(seen) == 1:
            path.write_text("two")
        return text + "!"

    assert files.change(path, edit) == (b"two", b"two!")
    assert seen == ["one", "two"]
    assert path.read_text() == "two!"
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_writer_that_never_ends_is_named(tmp_path: Path) -> None:
    """D09: after a few tries the change is refused, and the other program's bytes stay."""
    path = tmp_path / "a.json"

    def edit(text: str) -> str:
        path.write_text(text + "x")
        return "mine"

    with pytest.raises(CliError, match="keeps writing") as caught:
        files.change(path, edit)
    assert caught.value.code == exits.CONFLICT
    assert path.read_text() == "xxxxx"
    assert os.listdir(tmp_path) == ["a.json"]


def test_what_is_no_text_or_no_file(tmp_path: Path) -> None:
    """D08: bytes that are no text are refused with their line; a folder is refused too."""
    path = tmp_path / "a.json"
    path.write_bytes(b"{\n\xff}")
    with pytest.raises(CliError, match="line 2 is no UTF-8"):
        files.change(path, lambda text: text)
    with pytest.raises(CliError, match="cannot read"):
        files.read(tmp_path)


def test_copies_do_not_overwrite_each_other(tmp_path: Path) -> None:
    """Each backup has a name of its own."""
    path = tmp_path / "a.json"
    path.write_text("x")
    assert len({files.keep_copy(path, b"1"), files.keep_copy(path, b"2"), files.keep_copy(path, b"3")}) == 3


def test_records(tmp_path: Path) -> None:
    """One record an entry; a file that is no record is as none."""
    home = Home.from_env({"COFFER_HOME": str(tmp_path / "h")})
    one = records.Record(file=os.path.realpath(tmp_path / "f"), place=["a", "coffer"])
    assert records.find(home, tmp_path / "f", ("a", "coffer")) is None
    records.store(home, one)
    records.store(home, one)
    assert records.find(home, tmp_path / "f", ("a", "coffer")) == one
    records.forget(home, tmp_path / "f", ("a", "other"))
    records.forget(home, tmp_path / "f", ("a", "coffer"))
    assert records.find(home, tmp_path / "f", ("a", "coffer")) is None
    (home.root / "installs.json").write_text("{")
    assert records.find(home, tmp_path / "f", ("a", "coffer")) is None


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["/nowhere/coffer-shim"], "cannot be started"),
        (["/bin/sh", "-c", "echo no such thing >&2; exit 3"], "exit code 3: no such thing"),
        (["/bin/sh", "-c", "read x; echo hello"], "is none"),
        (["/bin/sh", "-c", """read x; echo '{"id": 1, "error": {"message": "go away"}}'"""], "go away"),
    ],
)
def test_an_entry_that_does_not_work_says_why(words: list[str], why: str) -> None:
    """The handshake is tried with real processes, and each failure names its cause."""
    with pytest.raises(handshake.HandshakeError, match=why):
        handshake.attempt({"command": words[0], "args": words[1:]})
