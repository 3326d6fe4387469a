"""What is built and how: the wheel, the commands, the versions, and who may import whom."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from tests.support.upstreams import ROOT

FOLDERS = {
    "coffer_common": "coffer_common",
    "coffer_supervisor": "coffer_supervisor",
    "coffer_worker": "coffer_worker",
    "cli": "coffer_cli",
    "migrations": "coffer_migrations",
}


def tracked() -> list[str]:
    """The files that git tracks and that still lie there."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    return [name for name in listed.split("\0") if name and (ROOT / name).exists()]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of what git tracks, without the network."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("out")
    for name in tracked():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, source / name)
    build = "import sys; from setuptools import build_meta; print(build_meta.build_wheel(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", build, str(out)], cwd=source, capture_output=True, check=True, timeout=50)
    return next(out.glob("*.whl"))


def setuptools_new_enough() -> bool:
    """Whether the environment's own setuptools can build the project (its build needs 77)."""
    try:
        return int(metadata.version("setuptools").split(".")[0]) >= 77
    except metadata.PackageNotFoundError:
        return False


@pytest.mark.skipif(not setuptools_new_enough(), reason="building without the network needs setuptools 77 or newer")
def test_the_wheel_holds_what_git_tracks(wheel: Path) -> None:
    """Every tracked file of the five packages is in the wheel, migrations included, and nothing else."""
    expected = set()
    for name in tracked():
        top, _, rest = name.partition("/")
        if top in FOLDERS:
            expected.add(f"{FOLDERS[top]}/{rest}")
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == expected
    assert any(name.startswith("coffer_migrations/versions/") for name in names)


def test_the_commands_are_installed() -> None:
    """coffer, coffer-daemon and coffer-shim are beside the interpreter."""
    for command in ("coffer", "coffer-daemon", "coffer-shim"):
        assert (Path(sys.executable).parent / command).exists(), command


def test_the_version_is_said_once() -> None:
    """The version constant equals the project's metadata."""
    from coffer_common.version import VERSION

    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == VERSION


def test_the_floors_are_kept() -> None:
    """The oldest versions that are supported are the ones that were promised."""
    floors = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    for floor in (
        "sqlalchemy[asyncio]>=2.0,<3",
        "aiosqlite>=0.20",
        "alembic>=1.13",
        "keyring>=25",
        "typer>=0.12",
        "rich>=13.7",
        "structlog>=24.1",
        "psutil>=5.9",
    ):
        assert floor in floors
    assert any(floor.startswith("mcp>=2.3") for floor in floors)


def test_the_import_contracts_hold() -> None:
    """Supervisor, worker and cli never import each other, and each I/O library has one owner."""
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=50, check=False)
    assert found.returncode == 0, found.stdout[-3000:]


LIGHT = {
    "coffer_cli.shim": ("asyncio", "mcp", "typer", "rich", "aiohttp", "sqlalchemy", "pydantic"),
    "coffer_supervisor.daemon": ("mcp", "pydantic", "typer"),
    "coffer_cli.main": ("mcp", "sqlalchemy", "aiohttp", "zmq", "coffer_supervisor", "coffer_worker"),
}


@pytest.mark.parametrize("module", LIGHT)
def test_what_must_start_fast_loads_nothing_heavy(module: str) -> None:
    """The shim has no asyncio and none of the big libraries; the supervisor never loads the SDK."""
    code = f"import sys, {module}; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True, cwd="/"
    ).stdout.split()
    assert not [name for name in LIGHT[module] if name in loaded]
