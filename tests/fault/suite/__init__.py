"""Breaking things on purpose beside a measured load: `python -m tests.fault.suite`, or `make fault`.

One case is one function in `faults/`: it prepares an upstream, a client or the daemon, lets the stage measure a
calm window, does its damage inside `async with stage.fault()`, and says what its callers must have seen.

| module | owns |
|---|---|
| `load` | the open-loop load on three healthy upstreams, in a process of its own; latency from the intended send |
| `stage` | the daemon, the victim, the two windows, what callers saw, what was left behind |
| `faults/` | the cases, by what they break: `hanging`, `noisy`, `dying`, `coffer`, `clients`, `machine` |
| `measure` | percentiles, recovery and the verdict of a case |
| `report` | `docs/faults.md` |

`FAULT_SECONDS` is the length of both windows together (30 by default, a third of it calm).
"""
