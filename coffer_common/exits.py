"""Exit codes of every Coffer command. A contract: scripts rely on them, so a code never changes its meaning."""

from typing import Final

OK: Final = 0
FAILURE: Final = 1
USAGE: Final = 2
UNREACHABLE: Final = 3
NOT_FOUND: Final = 4
CONFLICT: Final = 5
