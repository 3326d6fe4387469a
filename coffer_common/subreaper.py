"""The one system call that keeps descendants findable: becoming a child subreaper.

Owns the ctypes wrapper of ``prctl(PR_SET_CHILD_SUBREAPER)``. Never walks, signals or reaps a process.
"""

import ctypes
import os
import sys
from typing import Final

_PR_SET_CHILD_SUBREAPER: Final = 36
_PR_GET_CHILD_SUBREAPER: Final = 37


def become_subreaper() -> bool:
    """Make this process the new parent of every orphaned descendant. True where the system can (Linux).

    The attribute is not inherited over ``fork``: each process that wants it calls this itself. Raises
    OSError when a system that should have the call refuses it.
    """
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot become a child subreaper: {os.strerror(number)}")
    return True


def is_subreaper() -> bool:
    """Whether this process is a child subreaper; always False where the system has none."""
    if not sys.platform.startswith("linux"):
        return False
    flag = ctypes.c_int(0)
    libc = ctypes.CDLL(None, use_errno=True)
    return libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(flag), 0, 0, 0) == 0 and flag.value == 1
