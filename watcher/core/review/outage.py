"""A partial outage of the monitoring must not herd pods.

The Go plug-ins score an absent node 0. When the monitoring of every fifth node dies at once, a list without those nodes
therefore sends all pods to the rest. So they are held for a while, and then the whole list is refused: an error leaves
the plug-ins the copy they have.

Pure: no I/O, no clock (`now` is an argument). The rule is that of issue 1, "Review of samples".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from watcher.arrays import F64, Bool
from watcher.core.review.findings import report, some_of
from watcher.core.review.limits import Limits
from watcher.model import Finding, FindingKind, Remedy

Value = TypeVar("Value")

LATE_CADENCES = 2.0
SAME_EVENT_INTERVALS = 1.5  # what happens within two adjacent ticks is one event


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the guard decided at one tick, arrays [n] like the nodes that it was asked about.

    `held` nodes are served though they would be quarantined; `quarantined` are not served; `late` are served and fell
    behind together with many others. `age_s` is NaN but for held and late nodes. `lost` maps the known nodes that went
    in a mass to the time of their last sample: not empty means that a list of all nodes would be a remnant (503).
    """

    held: Bool
    quarantined: Bool
    late: Bool
    age_s: F64
    lost: Mapping[str, float]
    findings: tuple[Finding, ...]


@dataclass(slots=True)
class _Departure:
    """A known node that would leave the list: since when, its last sample, whether it is frozen (else it vanished) and
    whether it left in a mass."""

    since: float
    newest: float
    frozen: bool
    mass: bool = False


@dataclass(frozen=True, slots=True)
class _Tick:
    """What the guard is asked at one tick: `served` (node -> newest sample) stay as they are, `frozen` (node -> row)
    would be quarantined, `vanishing` rows vanish. `standing` marks the frozen rows, in observe mode too."""

    now: float
    nodes: Sequence[str]
    newest: F64
    cadence: F64
    served: Mapping[str, float]
    frozen: Mapping[str, int]
    standing: Bool
    vanishing: Bool


class Guard:
    """Keeps a partial outage of the monitoring from herding pods (issue 2, "A partial outage must not herd pods").

    If more than a fifth of the known nodes would vanish or be quarantined at once, it is the monitoring that went, not
    the nodes. Frozen ones are then held for `max_staleness_s` from when they were found frozen; vanished ones are older
    than that by definition. Both are lost afterwards, and a list without them is refused rather than served. Fewer than
    that go one by one, each with a finding. "At once" is within two adjacent ticks, since the samples of an outage's
    nodes grow old over a cadence, not in one moment. The lost are forgotten when so many are back that the rest is no
    mass, or after `forget_after_s`: then the fleet has really shrunk.

    Nodes that have already vanished when the guard first looks are not known to it, but for those that it is told of
    (`await_back`): a restart must not turn what was refused into a remnant. In observe mode nobody is
    quarantined; the list is guarded all the same, since that changes no sample.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._known: Mapping[str, float] = {}  # node that was served at the last step -> its newest sample
        self._departures: dict[str, _Departure] = {}
        self._last_step: float | None = None

    def forget(self) -> None:
        """Start anew, for instance when another source names the nodes differently."""
        self._known, self._departures, self._last_step = {}, {}, None

    def rename(self, names: Mapping[str, str | None]) -> None:
        """Nodes go by other names now; None is one that is gone and must not be waited for."""
        self._known = _under(self._known, names)
        self._departures = _under(self._departures, names)

    def await_back(self, lost: Mapping[str, float], *, now: float) -> None:
        """Go on waiting for nodes that were lost before a restart: node -> time of its last sample, unix seconds."""
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
    ) -> Verdict:
        """Decide for one tick. `nodes` are all that the history knows, without repetition; `newest` and `cadence` [n]
        each node's newest sample and cadence in seconds; `would_vanish` [n] those without a sample young enough to
        serve (known nodes that are not in `nodes` vanished too); `would_quarantine` [n] those that are frozen.
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
        # one that came back from a departure of its own was not in the list: it must not make an outage look smaller
        fleet = self._find_mass(tick, sum(departure.mass for departure in returned))
        findings = self._gone_singly(tick, vanished) + self._settle(now, fleet, returned)
        self._known = served
        return self._verdict(tick, fleet, findings)

    # --- who left ---

    def _is_mass(self, count: int, fleet: int) -> bool:
        enough = count >= self.limits.outage_nodes or count == fleet
        return count > self.limits.outage_fraction * fleet and enough

    def _is_recent(self, departure: _Departure, now: float) -> bool:
        return now - departure.since <= SAME_EVENT_INTERVALS * self.limits.interval_s

    def _lost_at(self, departure: _Departure) -> float:
        return departure.since + (self.limits.max_staleness_s if departure.frozen else 0.0)

    def _follow_clock(self, now: float) -> None:
        """A clock that steps back must not make a hold last longer."""
        if self._last_step is not None and now < self._last_step:
            for departure in self._departures.values():
                departure.since -= self._last_step - now
        self._last_step = now

    def _note_departures(self, tick: _Tick) -> list[str]:
        """Note who left since the last step, and how; returns those that vanished just now."""
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
                # one that was never served takes nothing from the list, so its departure is no event
                since = tick.now if before or name in self._known else float("-inf")
                self._departures[name] = _Departure(since, float(tick.newest[row]), frozen=True)
        return vanished

    def _find_mass(self, tick: _Tick, returned: int) -> int:
        """Mark those that left together, if they are a mass; returns how many nodes were known before they left."""
        recent = [d for d in self._departures.values() if self._is_recent(d, tick.now)]
        earlier = sum(d.mass and not self._is_recent(d, tick.now) for d in self._departures.values())
        fleet = len(tick.served.keys() & self._known.keys()) + returned + len(recent) + earlier
        if self._is_mass(len(recent), fleet):
            for departure in recent:
                departure.mass = True
        return fleet

    def _settle(self, now: float, fleet: int, returned: Sequence[_Departure]) -> tuple[Finding, ...]:
        """End a mass that is none any more, or that has been waited for long enough; let go of what is over."""
        mass = {name: d for name, d in self._departures.items() if d.mass}
        back = sum(departure.mass for departure in returned)
        patience = self.limits.forget_after_s
        findings: tuple[Finding, ...] = ()
        leaving = sum(not d.mass and self._is_recent(d, now) for d in self._departures.values())
        # it ends by nodes that come back, not by a fleet that grows around those that are away
        if back and not self._is_mass(len(mass) + leaving, fleet):
            over = list(mass)
            text = f"the outage is over; came back just now: {back}; still away, and left out: {len(over)}"
            findings = (_outage(now, text, Remedy.REPORTED),)
        else:
            over = [name for name, d in mass.items() if now - self._lost_at(d) > patience]
        if over and not findings:
            text = f"{len(over)} nodes ({some_of(over)}) stayed away for {patience:g} s: the fleet is smaller now"
            findings = (_outage(now, text, Remedy.LEFT_OUT),)
        for name in over:
            mass[name].mass = False
        self._departures = {
            name: d
            for name, d in self._departures.items()
            if d.mass or d.frozen or (name not in mass and self._is_recent(d, now))
        }
        return findings

    # --- what becomes of them ---

    def _verdict(self, tick: _Tick, fleet: int, findings: tuple[Finding, ...]) -> Verdict:
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
        return Verdict(held, quarantined, late, age_s, lost, findings)

    def _late(self, tick: _Tick, fleet: int) -> Bool:
        """Who fell behind by more than max(2 cadences, an interval), if that is a mass; else nobody."""
        patience = np.fmax(LATE_CADENCES * tick.cadence, self.limits.interval_s)
        late = ~tick.vanishing & ~tick.standing & (tick.now - tick.newest > patience)
        return late if self._is_mass(int(np.count_nonzero(late)), fleet) else np.zeros(len(late), dtype=bool)

    # --- what it says ---

    def _gone_singly(self, tick: _Tick, vanished: Sequence[str]) -> tuple[Finding, ...]:
        """Nodes that left just now and not in a mass: the history still lists them (stale) or not (missing)."""
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
            reason=lambda i: f"its last sample is {ages[i]:.0f} s old; it is left out of the list",
            summary="their last samples are too old; they are left out of the list",
        )

    def _standing_still(self, tick: _Tick, held: Bool, quarantined: Bool) -> tuple[Finding, ...]:
        text = "all metrics that ought to move stand still over five samples: the exporter repeats itself"
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
    """The same under the new names; what was known under one of them before counts more."""
    moved = {new: value for name, value in of.items() if (new := names.get(name)) is not None}
    return moved | {name: value for name, value in of.items() if name not in names}


def _outage(now: float, text: str, remedy: Remedy) -> Finding:
    return Finding(FindingKind.PARTIAL_OUTAGE, "", "", now, text, remedy)


def _outages(tick: _Tick, held: Bool, late: Bool, lost: Mapping[str, float], fleet: int) -> tuple[Finding, ...]:
    """What lasts of an outage at this tick, in one finding."""

    def named(what: Bool) -> str:
        rows = np.flatnonzero(what).tolist()
        return f"{len(rows)} of {fleet} known nodes ({some_of(tick.nodes[row] for row in rows)})"

    parts = []
    if lost:
        parts.append(
            f"{len(lost)} of {fleet} known nodes ({some_of(lost)}) went silent together; the list of all nodes is"
            " refused, since schedulers would take it for the whole fleet: check the monitoring of these nodes"
        )
    if held.any():
        parts.append(f"{named(held)} froze together; their last values are kept for now: check their exporters")
    if late.any():
        parts.append(f"{named(late)} fell behind together; their last values are kept for now")
    return (_outage(tick.now, "; ".join(parts), Remedy.LEFT_OUT if lost else Remedy.HELD),) if parts else ()
