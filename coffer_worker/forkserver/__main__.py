"""Entry point of the fork server: ``python -P -m coffer_worker.forkserver --fd N [--room PADDING]``.

Owns nothing but the order of things at start. ``--room`` only makes the argument vector long enough for
the titles of workers, which are cut to it.
"""

import os
import socket
import sys

import setproctitle

from coffer_common.subreaper import become_subreaper
from coffer_worker.forkserver.preload import preload
from coffer_worker.forkserver.server import Server

TITLE = "coffer-forkserver"


def main() -> int:
    """Run until the supervisor's end of the socket closes."""
    fd = int(sys.argv[sys.argv.index("--fd") + 1])
    os.set_inheritable(fd, False)
    setproctitle.setproctitle(TITLE)
    setproctitle.setthreadtitle(TITLE[:15])
    become_subreaper()
    preload()
    Server(socket.socket(fileno=fd)).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
