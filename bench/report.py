"""The figures as a table and as JSON, each beside its target. Missing a target is shown, never a failure."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from bench.load import Load

RELAY_REFERENCE = 14_500  # calls/s of the relay on the two cores that the absolute target is given for
TARGET_REFERENCE = 8_000


@dataclass(frozen=True)
class Target:
    """One figure beside what it should be."""

    what: str
    value: float
    unit: str
    limit: float
    at_most: bool = True
    note: str = ""

    @property
    def met(self) -> bool:
        """Whether the figure is on the right side of its limit."""
        return self.value <= self.limit if self.at_most else self.value >= self.limit


@dataclass
class Report:
    """All that one run found. `loads` by way (direct, relay, http, shim, url, http-url), one for each concurrency."""

    loads: dict[str, list[Load]] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def at(self, way: str, at_once: int) -> Load | None:
        """One load, if it was measured."""
        return next((one for one in self.loads.get(way, ()) if one.at_once == at_once), None)

    def targets(self) -> list[Target]:
        """Every target whose figures were measured."""
        return [*self._speed(), *self._rest()]

    def _speed(self) -> list[Target]:
        found = []
        direct, relay = self.at("direct", 1), self.at("relay", 64)
        for way, limit in (("http", 0.6), ("shim", 0.7)):
            one = self.at(way, 1)
            if one and direct:
                what = f"{way}: p50 over direct, one at a time"
                found.append(Target(what, round(one.p50 - direct.p50, 3), "ms", limit))
        url, through = self.at("url", 1), self.at("http-url", 1)
        if url and through:
            what = "http-url: p50 over url, one at a time"
            found.append(Target(what, round(through.p50 - url.p50, 3), "ms", 1.0))
        many = self.at("http", 64)
        if many and relay and relay.per_second:
            ratio = round(many.per_second / relay.per_second, 2)
            found.append(Target("http: calls/s of the relay's, 64 at a time", ratio, "x", 0.5, at_most=False))
            scaled = round(TARGET_REFERENCE * relay.per_second / RELAY_REFERENCE)
            note = f"{TARGET_REFERENCE} where the relay does {RELAY_REFERENCE}"
            found.append(Target("http: calls/s, 64 at a time", many.per_second, "/s", scaled, at_most=False, note=note))
        return found

    def _rest(self) -> list[Target]:
        rows = (
            ("list_ms", "tools/list of 1,000 tools of 20 upstreams", "ms", 10),
            ("worker_mb", "PSS of an idle worker (the largest)", "MB", 20),
            ("worker_start_ms", "start of a worker, fork server warm", "ms", 50),
            ("supervisor_mb", "PSS of the idle supervisor", "MB", 80),
            ("fork_server_mb", "PSS of the fork server", "MB", 40),
            ("big_ratio", "10 MB result: time of the relay's", "x", 1.5),
            ("big_memory_ratio", "10 MB result: extra memory of its size", "x", 12),
            ("shim_start_ms", "shim: start to first answered initialize", "ms", 150),
        )
        return [
            Target(what, float(self.figures[key]), unit, limit)
            for key, what, unit, limit in rows
            if self.figures.get(key) is not None
        ]

    def as_json(self) -> dict[str, Any]:
        """Stable keys: loads, figures, targets, faults."""
        return {
            "loads": {way: [asdict(one) for one in some] for way, some in self.loads.items()},
            "figures": self.figures,
            "targets": [{**asdict(target), "met": target.met} for target in self.targets()],
            "faults": self.faults,
        }

    def table(self) -> str:
        """For people."""
        lines = [f"{'way':10}{'at once':>8}{'p50 ms':>10}{'p95 ms':>10}{'p99 ms':>10}{'calls/s':>12}{'of relay':>10}"]
        for way, some in self.loads.items():
            for one in some:
                relay = self.at("relay", one.at_once)
                ratio = f"{one.per_second / relay.per_second:.2f}" if relay and relay.per_second else "-"
                lines.append(
                    f"{way:10}{one.at_once:>8}{one.p50:>10.3f}{one.p95:>10.3f}{one.p99:>10.3f}"
                    f"{one.per_second:>12,.0f}{ratio:>10}"
                )
        lines += ["", f"{'':48}{'value':>12}{'target':>14}"]
        for target in self.targets():
            sign = "<=" if target.at_most else ">="
            lines.append(
                f"{target.what:48}{target.value:>9,.2f} {target.unit:<2}{sign:>5} {target.limit:<8,g}"
                f"{'' if target.met else 'missed'} {target.note}".rstrip()
            )
        figures = self.figures
        if "rows" in figures:
            lines += ["", f"calls made through Coffer {figures['calls']:,}, rows logged {figures['rows']:,}"]
        lines += [f"FAULT: {fault}" for fault in self.faults]
        return "\n".join(lines)
