"""Which TCP ports the daemon may listen on: 8000 to 8009, or what ``COFFER_PORTS`` names.

Owns the range and its spelling. Never binds a port.
"""

import os
import re
from collections.abc import Mapping
from typing import Final

DEFAULT: Final = range(8000, 8010)
VARIABLE: Final = "COFFER_PORTS"
_RANGE: Final = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")


class BadPorts(ValueError):
    """``COFFER_PORTS`` names no ports; the text says what it should look like."""


def port_range(environ: Mapping[str, str] | None = None) -> range:
    """The ports in the order in which they are tried. Raises BadPorts."""
    text = (os.environ if environ is None else environ).get(VARIABLE, "").strip()
    if not text:
        return DEFAULT
    match = _RANGE.fullmatch(text)
    if match is not None:
        first, last = int(match.group(1)), int(match.group(2) or match.group(1))
        if 1024 <= first <= last <= 65535:
            return range(first, last + 1)
    raise BadPorts(f"{VARIABLE}={text!r} names no ports: give one from 1024 to 65535, or a range such as 8100-8109")
