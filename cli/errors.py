"""How a command ends when it cannot do what was asked: one exception, one way to say it.

Owns the exit code of each failure. Never prints a trace: ``main`` does, when asked to.
"""

from coffer_common import exits


class CliError(Exception):
    """``message``: what happened and why. ``hint``: what to do next, a line or a few. ``code``: of the process."""

    def __init__(self, message: str, hint: str = "", code: int = exits.FAILURE) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.code = code


def usage(message: str, hint: str = "") -> CliError:
    """The command was not given as it must be; nothing was done."""
    return CliError(message, hint, exits.USAGE)
