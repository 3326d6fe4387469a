"""Which processes belong to one upstream process: a decision on a snapshot.

Owns the rule. Never reads ``/proc`` itself, signals or reaps.
"""

from collections.abc import Callable, Collection, Mapping

from coffer_common.proctree import Proc, children, descendants


def family(
    me: int,
    pid: int,
    others: Collection[int],
    procs: Mapping[int, Proc],
    is_marked: Callable[[int], bool],
) -> list[Proc]:
    """The process ``pid``, all below it, all of its session, and what of it this worker (``me``) adopted.

    ``others`` are the worker's other live upstream processes; neither they nor what is below them is
    taken. ``is_marked`` says whether an adopted PID carries this upstream's cookie: that is how one that
    left its session and lost its parent is still known. If ``pid`` itself is among ``others`` it has been
    reused since: then the mark alone counts.
    """
    roots: list[Proc] = []
    if pid not in others:
        roots += [proc for proc in procs.values() if pid in (proc.pid, proc.session)]
    roots += [proc for proc in children(me, procs) if proc.pid not in others and is_marked(proc.pid)]
    found: dict[int, Proc] = {}
    for root in roots:
        for proc in (root, *descendants(root.pid, procs, spare=others)):
            found[proc.pid] = proc
    return list(found.values())
