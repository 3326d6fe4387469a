"""The benchmark: `python -m bench` (or `make bench`).

It measures, in one run on one machine, the same echo call several ways: directly over the upstream's pipe, through
a bare relay of Coffer's shape, through Coffer over HTTP, and through Coffer over the shim; and, for an upstream at a
URL, directly (`url`) and through Coffer (`http-url`). Figures of different
machines or days must not be compared; the ratios within one run may. It checks answers, and never fails for
being slow.
"""
