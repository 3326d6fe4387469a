"""The MCP clients that Coffer knows: where each keeps its servers, in which format, under which key.

Owns this table. Pure: paths are made from the home folder and the platform that are passed in.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

Format = Literal["json", "toml"]
ENTRY: Final = "coffer"
_OF_PROJECTS: Final = frozenset(
    {(".cursor", "mcp.json"), (".vscode", "mcp.json"), (".codex", "config.toml"), (".claude", "mcp.json")}
)
_KEYS: Final = (("mcpServers",), ("servers",), ("mcp_servers",), ("context_servers",), ("mcp", "servers"), ("mcp",))


@dataclass(frozen=True, slots=True)
class Known:
    """One client. ``linux`` and ``mac``: its file, below the home folder; ``key``: where servers stand in it."""

    name: str
    title: str
    linux: str
    mac: str
    key: tuple[str, ...] = ("mcpServers",)
    format: Format = "json"
    typed: bool = False
    apply: str = "restart it"

    def file(self, home: Path, platform: str, env: Mapping[str, str]) -> Path:
        """Its configuration file."""
        if self.name == "codex" and env.get("CODEX_HOME"):
            return Path(env["CODEX_HOME"]) / "config.toml"
        if self.name == "claude-code" and env.get("CLAUDE_CONFIG_DIR"):
            return Path(env["CLAUDE_CONFIG_DIR"]) / ".claude.json"
        if platform == "darwin":
            return home / self.mac
        config = env.get("XDG_CONFIG_HOME", "")
        if self.linux.startswith(".config/") and os.path.isabs(config):
            return Path(config) / self.linux.removeprefix(".config/")
        return home / self.linux


_MAC: Final = "Library/Application Support"
CLIENTS: Final = {
    one.name: one
    for one in (
        Known(
            "claude-desktop",
            "Claude Desktop",
            ".config/Claude/claude_desktop_config.json",
            f"{_MAC}/Claude/claude_desktop_config.json",
        ),
        Known("claude-code", "Claude Code", ".claude.json", ".claude.json", typed=True, apply="start a new session"),
        Known("cursor", "Cursor", ".cursor/mcp.json", ".cursor/mcp.json"),
        Known(
            "vscode",
            "VS Code",
            ".config/Code/User/mcp.json",
            f"{_MAC}/Code/User/mcp.json",
            key=("servers",),
            typed=True,
            apply="reload its window",
        ),
        Known("codex", "Codex", ".codex/config.toml", ".codex/config.toml", key=("mcp_servers",), format="toml"),
    )
}


def server_tables(document: Any) -> dict[tuple[str, ...], dict[str, Any]]:
    """Every table of servers in a client's document, by its path: the top one, and those of single projects."""
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for path in _KEYS:
        table = _at(document, path)
        if table is not None and any(isinstance(one, dict) for one in table.values()):
            found[path] = table
            break
    projects = _at(document, ("projects",)) or {}
    for folder in projects:
        table = _at(document, ("projects", folder, "mcpServers"))
        if table:
            found["projects", folder, "mcpServers"] = table
    return found


def project_of(path: Path, home: Path) -> str:
    """The folder of the project whose own configuration a file is; empty for one that is for all projects."""
    folder = path.parent if path.name == ".mcp.json" else path.parent.parent
    own = path.name == ".mcp.json" or (path.parent.name, path.name) in _OF_PROJECTS
    return str(folder) if own and folder != home else ""


def _at(document: Any, path: tuple[str, ...]) -> dict[str, Any] | None:
    for key in path:
        document = document.get(key) if isinstance(document, dict) else None
    return document if isinstance(document, dict) else None


def is_ours(entry: Any) -> bool:
    """Whether a server's entry starts Coffer's own shim."""
    command = entry.get("command") if isinstance(entry, dict) else None
    return isinstance(command, str) and os.path.basename(command) == "coffer-shim"


def entry(client: Known | None, shim: str, arguments: list[str], env: dict[str, str]) -> dict[str, Any]:
    """What stands under the entry's name in that client's configuration."""
    made: dict[str, Any] = {"type": "stdio"} if client is not None and client.typed else {}
    made["command"] = shim
    if arguments or (client is not None and client.typed):
        made["args"] = arguments
    if env:
        made["env"] = env
    return made
