#!/bin/sh
# `make run`: the daemon, real servers behind it, a tool called through it, and what to paste into a client.
# Safe to run again at any time; takes the folder that holds the installed commands.
set -eu

bin=$1
root=$(cd "$(dirname "$0")/.." && pwd)
PATH="$bin:$PATH"
export PATH

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
[ -t 1 ] && [ -z "${NO_COLOR:-}" ] || say() { printf '\n%s\n' "$*"; }

# register NAME COMMAND...: once; a server that is there already is left as it is, and waited for.
register() {
    name=$1
    shift
    if coffer mcp show "$name" >/dev/null 2>&1; then
        echo "$name is registered already"
        coffer mcp test --quiet "$name" || echo "$name is not ready; the other servers do not mind"
    else
        coffer mcp add "$name" -- "$@"
    fi
}

say "1. The daemon"
coffer daemon start

say "2. Demo servers"
register time "$bin/mcp-server-time" --local-timezone UTC
if git -C "$root" rev-parse --git-dir >/dev/null 2>&1; then
    register git "$bin/mcp-server-git" --repository "$root"
else
    register git "$bin/mcp-server-git"
fi
if command -v npx >/dev/null 2>&1; then
    register everything npx -y @modelcontextprotocol/server-everything ||
        echo "everything could not be added; the other servers do not mind"
fi

coffer mcp list

say "3. A tool, called through the gateway"
coffer mcp tools time
coffer mcp call time get_current_time --arg timezone=UTC

say "4. The processes"
coffer ps

# Paths may hold blanks, quotes and backslashes: as a word of a shell, and as a JSON text.
word() {
    case $1 in
    *[!A-Za-z0-9_/.:=@%+,-]*) printf "'%s'" "$(printf '%s' "$1" | sed "s/'/'\\\\''/g")" ;;
    *) printf '%s' "$1" ;;
    esac
}
json() { printf '"%s"' "$(printf '%s' "$1" | sed 's/[\\"]/\\&/g')"; }

# A client starts the shim without the variables of this shell.
flags= env=
if [ -n "${COFFER_HOME:-}" ]; then
    flags=" --env $(word "COFFER_HOME=$COFFER_HOME")"
    env=", \"env\": {\"COFFER_HOME\": $(json "$COFFER_HOME")}"
fi
shim=$bin/coffer-shim

say "5. Paste this into your client"
cat <<END
Claude Code:
  claude mcp add coffer$flags -- $(word "$shim")

Claude Desktop, Cursor and others that read "mcpServers":
  {"mcpServers": {"coffer": {"command": $(json "$shim")$env}}}

VS Code (.vscode/mcp.json):
  {"servers": {"coffer": {"type": "stdio", "command": $(json "$shim")$env}}}

Over HTTP: this prints the URL and a token of that client's own
  coffer client add NAME

The daemon goes on running: coffer daemon stop ends it.
END
