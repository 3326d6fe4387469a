"""The flags that hold for every command, wherever they stand: ``--verbose`` and ``--no-spawn``.

Owns taking them from the command line before it is parsed. What follows ``--`` belongs to a server and stays.
"""

import os
from collections.abc import Sequence
from typing import Final

_FLAGS: Final = {"--verbose": "COFFER_VERBOSE", "--no-spawn": "COFFER_NO_SPAWN"}


def take_flags(argv: Sequence[str]) -> list[str]:
    """``argv`` without those flags; they are kept in the environment, for this process and a daemon it starts."""
    end = list(argv).index("--") if "--" in argv else len(argv)
    for word in argv[:end]:
        if word in _FLAGS:
            os.environ[_FLAGS[word]] = "1"
    return [word for word in argv[:end] if word not in _FLAGS] + list(argv[end:])


def verbose() -> bool:
    """Whether an error shows its trace."""
    return os.environ.get("COFFER_VERBOSE", "") not in ("", "0")


def no_spawn() -> bool:
    """Whether a command fails where no daemon runs, instead of starting one."""
    return os.environ.get("COFFER_NO_SPAWN", "") not in ("", "0")
