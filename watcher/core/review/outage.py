"""Protection against partial outages of the monitoring, which would concentrate pods on few nodes.

The Go plug-ins score an absent node 0. When the monitoring of every fifth node fails at once, a list without these
nodes therefore sends all pods to the remaining nodes. So their last values are held for a while, and then the whole
list is refused: on an error the plug-ins continue with their cached copy.

Pure: no I/O, no clock (`now` is an argument, in unix seconds).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from watcher.arrays import F64, Bool
from watcher.core.review.findings import report, some_of
from watcher.core.review.settings import ReviewSettings
from watcher.model import Finding, FindingKind, Remedy

Value = TypeVar("Value")

LATE_CADENCES = 2.0
SAME_EVENT_INTERVALS = 1.5  # departures within two adjacent ticks are one event


@dataclass(frozen=True, slots=True)
class OutageDecision:
    """The guard's decision for one tick; arrays [n] in the order of the nodes passed to `OutageGuard.step`.

    `held` nodes are served although they would be quarantined; `quarantined` nodes are not served; `late` nodes are
    served and fell behind in a partial outage. `age_s` is the age in seconds of held and late nodes, NaN for all
    other nodes. `lost` maps known nodes of a mass departure to the time of their last sample (unix seconds); if it
    is not empty, a list of all nodes would be incomplete (503).
    """

    held: Bool
    quarantined: Bool
    late: Bool
    age_s: F64
    lost: Mapping[str, float]
    findings: tuple[Finding, ...]


@dataclass(slots=True)
class _Departure:
    """A known node that would leave the list: time of departure, time of its last sample (both unix seconds), whether
    it is frozen (otherwise it vanished), and whether it is part of a mass departure."""

    since: float
    newest: float
    frozen: bool
    mass: bool = False


@dataclass(frozen=True, slots=True)
class _Tick:
    """The guard's input at one tick: `served` nodes (node -> time of newest sample) stay as they are, `frozen` nodes
    (node -> row) would be quarantined, `vanishing` rows vanish. `standing` marks the frozen rows, in observe mode too.
    """

    now: float
    nodes: Sequence[str]
    newest: F64
    cadence: F64
    served: Mapping[str, float]
    frozen: Mapping[str, int]
    standing: Bool
    vanishing: Bool


class OutageGuard:
    """Detects partial outages of the monitoring, so that they do not concentrate pods on the remaining nodes.

    If more than a fifth of the known nodes (`outage_fraction`) would vanish or be quarantined at once, the monitoring
    failed, not the nodes. Frozen nodes are then held for `max_staleness_s` after they were found frozen; vanished nodes
    are older than that by definition. After that both are lost, and a list without them is refused instead of served.
    Fewer nodes leave the list one by one, each with a finding. "At once" means within two adjacent ticks, because the
    samples of an outage's nodes become stale over a cadence, not at the same time. Lost nodes are forgotten when so
    many are back that the missing nodes are too few for an outage, or after `forget_after`: then the fleet has really
    shrunk.

    Nodes that have vanished before the first step are unknown to the guard, except the nodes passed to `expect_back`:
    after a restart, an incomplete list that was refused must still be refused. In observe mode no node is quarantined;
    the list is guarded as well, because that changes no sample.
    """

    def __init__(self, limits: ReviewSettings) -> None:
        self.limits = limits
        self._known: Mapping[str, float] = {}  # node served at the last step -> time of its newest sample
        self._departures: dict[str, _Departure] = {}
        self._last_step: float | None = None

    def forget(self) -> None:
        """Reset the state, for example when another source names the nodes differently."""
        self._known, self._departures, self._last_step = {}, {}, None

    def rename(self, names: Mapping[str, str | None]) -> None:
        """Apply renames (old name -> new name). None: the node has left and is not waited for."""
        self._known = _under(self._known, names)
        self._departures = _under(self._departures, names)

    def expect_back(self, lost: Mapping[str, float], *, now: float) -> None:
        """Continue to wait for nodes that were lost before a restart: node -> time of its last sample, unix seconds."""
        for name, newest in lost.items():
            since = min(now, newest + self.limits.max_staleness_s)
            self._departures[name] = _Departure(since, newest, frozen=False, mass=True)

    def step(
        self,
        *,
        now: float,
        nodes: Sequence[str],
        newest: F64,
        cadence: F64,
        would_vanish: Bool,
        would_quarantine: Bool,
    ) -> OutageDecision:
        """Decide for one tick. `nodes` are all nodes of the history, each once; `newest` [n] is the time of each node's
        newest sample (unix seconds), `cadence` [n] its cadence in seconds; `would_vanish` [n] marks nodes whose newest
        sample is too old to serve (known nodes that are not in `nodes` vanished too); `would_quarantine` [n] marks
        frozen nodes.
        """
        standing = would_quarantine & ~would_vanish
        frozen_rows = {nodes[row]: row for row in np.flatnonzero(standing).tolist()} if self.limits.enforced else {}
        served = {nodes[row]: float(newest[row]) for row in np.flatnonzero(~would_vanish).tolist()}
        if self._last_step is None:
            self._known = dict(served)
        for name in frozen_rows:
            del served[name]
        tick = _Tick(now, nodes, newest, cadence, served, frozen_rows, standing, would_vanish)
        self._follow_clock(now)
        returned = [self._departures.pop(name) for name in self._departures.keys() & served.keys()]
        vanished = self._note_departures(tick)
        # a node that returns from a single departure was not in the list: it must not make an outage look smaller
        fleet = self._find_mass(tick, sum(departure.mass for departure in returned))
        findings = self._gone_singly(tick, vanished) + self._settle(now, fleet, returned)
        self._known = served
        return self._verdict(tick, fleet, findings)

    # --- departures ---

    def _is_mass(self, count: int, fleet: int) -> bool:
        enough = count >= self.limits.outage_nodes or count == fleet
        return count > self.limits.outage_fraction * fleet and enough

    def _is_recent(self, departure: _Departure, now: float) -> bool:
        return now - departure.since <= SAME_EVENT_INTERVALS * self.limits.interval_s

    def _lost_at(self, departure: _Departure) -> float:
        return departure.since + (self.limits.max_staleness_s if departure.frozen else 0.0)

    def _follow_clock(self, now: float) -> None:
        """Shift departures if the wall clock stepped back, so that a hold does not last longer."""
        if self._last_step is not None and now < self._last_step:
            for departure in self._departures.values():
                departure.since -= self._last_step - now
        self._last_step = now

    def _note_departures(self, tick: _Tick) -> list[str]:
        """Record the nodes that departed since the last step; return the nodes that vanished at this step."""
        vanished = []
        for name, departure in self._departures.items():
            if departure.frozen and name not in tick.frozen:
                departure.frozen = False
                vanished.append(name)
        for name, newest in self._known.items():
            if name not in tick.served and name not in tick.frozen:
                self._departures[name] = _Departure(tick.now, newest, frozen=False)
                vanished.append(name)
        for name, row in tick.frozen.items():
            before = self._departures.get(name)
            if before is None or not before.frozen:
                # a node that was never served is not missing from the list, so its departure is not an event
                since = tick.now if before or name in self._known else float("-inf")
                self._departures[name] = _Departure(since, float(tick.newest[row]), frozen=True)
        return vanished

    def _find_mass(self, tick: _Tick, returned: int) -> int:
        """Mark the recent departures as a mass departure if there are enough; return the number of nodes before
        them."""
        recent = [d for d in self._departures.values() if self._is_recent(d, tick.now)]
        earlier = sum(d.mass and not self._is_recent(d, tick.now) for d in self._departures.values())
        fleet = len(tick.served.keys() & self._known.keys()) + returned + len(recent) + earlier
        if self._is_mass(len(recent), fleet):
            for departure in recent:
                departure.mass = True
        return fleet

    def _settle(self, now: float, fleet: int, returned: Sequence[_Departure]) -> tuple[Finding, ...]:
        """End a mass departure that has become too small or is older than `forget_after` seconds; remove old
        departures."""
        mass = {name: d for name, d in self._departures.items() if d.mass}
        back = sum(departure.mass for departure in returned)
        patience = self.limits.forget_after
        findings: tuple[Finding, ...] = ()
        leaving = sum(not d.mass and self._is_recent(d, now) for d in self._departures.values())
        # only returning nodes end it: growth of the fleet does not
        if back and not self._is_mass(len(mass) + leaving, fleet):
            over = list(mass)
            text = f"the outage is over; nodes that returned now: {back}; nodes still missing, left out: {len(over)}"
            findings = (_outage(now, text, Remedy.REPORTED),)
        else:
            over = [name for name, d in mass.items() if now - self._lost_at(d) > patience]
        if over and not findings:
            text = f"{len(over)} nodes ({some_of(over)}) did not return within {patience:g} s: removed from the fleet"
            findings = (_outage(now, text, Remedy.LEFT_OUT),)
        for name in over:
            mass[name].mass = False
        self._departures = {
            name: d
            for name, d in self._departures.items()
            if d.mass or d.frozen or (name not in mass and self._is_recent(d, now))
        }
        return findings

    # --- decision ---

    def _verdict(self, tick: _Tick, fleet: int, findings: tuple[Finding, ...]) -> OutageDecision:
        n, now, patience = len(tick.nodes), tick.now, self.limits.max_staleness_s
        held, quarantined, age_s = np.zeros(n, dtype=bool), np.zeros(n, dtype=bool), np.full(n, np.nan)
        for name, row in tick.frozen.items():
            departure = self._departures[name]
            held[row] = departure.mass and now - departure.since <= patience
            quarantined[row] = not held[row]
            if held[row]:
                age_s[row] = now - min(departure.since, float(tick.newest[row]))
        late = self._late(tick, fleet)
        age_s[late] = now - tick.newest[late]
        lost = {
            name: d.newest
            for name, d in self._departures.items()
            if d.mass and (not d.frozen or now - d.since > patience)
        }
        findings += self._standing_still(tick, held, quarantined)
        findings += _outages(tick, held, late, lost, fleet)
        return OutageDecision(held, quarantined, late, age_s, lost, findings)

    def _late(self, tick: _Tick, fleet: int) -> Bool:
        """Return the nodes that fell behind by more than max(2 cadences, an interval) if they are enough for a mass
        departure; otherwise none."""
        patience = np.fmax(LATE_CADENCES * tick.cadence, self.limits.interval_s)
        late = ~tick.vanishing & ~tick.standing & (tick.now - tick.newest > patience)
        return late if self._is_mass(int(np.count_nonzero(late)), fleet) else np.zeros(len(late), dtype=bool)

    # --- findings ---

    def _gone_singly(self, tick: _Tick, vanished: Sequence[str]) -> tuple[Finding, ...]:
        """Report nodes that vanished at this step, without a mass departure: stale if the history still has them,
        otherwise missing."""
        alone = [name for name in vanished if not self._departures[name].mass]
        listed = set(tick.nodes) if alone else set()
        stale, missing = [name for name in alone if name in listed], [name for name in alone if name not in listed]
        return self._left_out(FindingKind.STALE, stale, tick.now) + self._left_out(
            FindingKind.MISSING, missing, tick.now
        )

    def _left_out(self, kind: FindingKind, names: Sequence[str], now: float) -> tuple[Finding, ...]:
        ages = [now - self._departures[name].newest for name in names]
        return report(
            kind,
            Remedy.LEFT_OUT,
            metric="",
            nodes=names,
            times=[now] * len(names),
            reason=lambda i: f"its last sample is {ages[i]:.0f} s old; the node is left out of the list",
            summary="their last samples are too old; the nodes are left out of the list",
        )

    def _standing_still(self, tick: _Tick, held: Bool, quarantined: Bool) -> tuple[Finding, ...]:
        text = "all metrics that should change are constant over five samples: the exporter repeats its last values"
        only_seen = tick.standing & ~held & ~quarantined
        findings: tuple[Finding, ...] = ()
        for which, remedy in (
            (held, Remedy.HELD),
            (quarantined, Remedy.QUARANTINED),
            (only_seen, Remedy.REPORTED),
        ):
            names = [tick.nodes[row] for row in np.flatnonzero(which).tolist()]
            findings += report(
                FindingKind.FROZEN,
                remedy,
                metric="",
                nodes=names,
                times=[tick.now] * len(names),
                reason=lambda _i: text,
                summary=text,
            )
        return findings


def _under(of: Mapping[str, Value], names: Mapping[str, str | None]) -> dict[str, Value]:
    """Return the mapping with renamed keys; an entry that already has a new name takes precedence."""
    moved = {new: value for name, value in of.items() if (new := names.get(name)) is not None}
    return moved | {name: value for name, value in of.items() if name not in names}


def _outage(now: float, text: str, remedy: Remedy) -> Finding:
    return Finding(FindingKind.PARTIAL_OUTAGE, "", "", now, text, remedy)


def _outages(tick: _Tick, held: Bool, late: Bool, lost: Mapping[str, float], fleet: int) -> tuple[Finding, ...]:
    """Return one finding about an outage that is in progress at this tick."""

    def named(what: Bool) -> str:
        rows = np.flatnonzero(what).tolist()
        return f"{len(rows)} of {fleet} known nodes ({some_of(tick.nodes[row] for row in rows)})"

    parts = []
    if lost:
        parts.append(
            f"{len(lost)} of {fleet} known nodes ({some_of(lost)}) became silent at the same time; the list of all"
            " nodes is refused, because schedulers would treat it as complete: check the monitoring of these nodes"
        )
    if held.any():
        parts.append(f"{named(held)} froze at the same time; their last values are still served: check their exporters")
    if late.any():
        parts.append(f"{named(late)} fell behind at the same time; their last values are still served")
    return (_outage(tick.now, "; ".join(parts), Remedy.LEFT_OUT if lost else Remedy.HELD),) if parts else ()
