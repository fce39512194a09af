"""Decision log: records the extender's decisions for `load-watcher why`.

The request handlers only pass references and continue. The details are copied from the arrays after the response is
sent. Until the outcome of a pod is known, the arrays of its ranking stay in memory, within bounds, because the pod may
be bound to a node that is not among the best.

No error here fails a request: a decision that cannot be recorded is dropped and counted.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from scorers.cluster.pods import PodInfo, identity
from scorers.cluster.table import ClusterTable
from scorers.decisions import records
from scorers.decisions.documents import BOUND, DELETED
from scorers.decisions.recorder import DecisionRecorder
from scorers.decisions.records import PlacementDecision, PlacementOutcome
from scorers.profiles.ranking import FilterResult, ProfileRunner, RankResult
from watcher.arrays import F64, I64
from watcher.core.kubernetes.objects import Pod
from watcher.platform.repeated_errors import RepeatedErrors

log = logging.getLogger(__name__)


FLUSH_S = 1.0
"""Flush interval in seconds; a killed process loses at most this much."""
DECISION_SPAN_S = 10.0
"""Maximum seconds between filter and prioritize of one decision; kube-scheduler waits at most 5 s for an extender."""
MOST_OPEN = 10_000
"""Maximum number of pods with an unknown outcome."""
FASTEST_S = 1.0
MOST_OF_BURST = 10
"""Of decisions about one pod, each less than `FASTEST_S` seconds after the one before, this many and the newest are
recorded. kube-scheduler waits for at least a second between two attempts (podInitialBackoffSeconds)."""
MOST_UNKNOWN = 1_000
"""Maximum number of pods that the API has not reported yet; a watch reports them within `DECISION_SPAN_S`."""
HELD_BYTES = 64 << 20
HELD_UNREPORTED_BYTES = 8 << 20
HELD_S = 60.0
"""Limits of ranking arrays in memory (bytes, bytes for pods that the API has not reported, seconds): 26 rankings of
5,000 nodes with all plug-ins, hundreds with one; a bind usually follows within about a second."""
NAME_BYTES = 72  # size of a node name as a Python string


@dataclass(frozen=True, slots=True)
class _CachedRanking:
    """A ranking in memory, kept until the pod is bound."""

    ranked: RankResult
    names: Sequence[str]
    sampled: F64
    bytes: int


@dataclass(frozen=True, slots=True)
class RankedResponse:
    """A prioritize response: of `asked` nodes the table contains `names`, in rows `rows`. `scores_sent`: whether the
    scores were sent to kube-scheduler; `reserved`: the node on which the pod is reserved, "" if none."""

    names: Sequence[str]
    rows: I64
    ranked: RankResult
    asked: int
    scores_sent: bool
    reserved: str


@dataclass(slots=True, eq=False)
class _OpenDecision:
    """The newest decision about a pod whose outcome is unknown; `key` is its key in the recorder, `burst` the number of
    decisions before it that followed each other too fast (FASTEST_S). `is_reported`: whether the API has the pod; other
    decisions are not recorded."""

    key: int
    decision: PlacementDecision
    is_reported: bool
    is_ranked: bool = False
    burst: int = 0


class _RankingCache:
    """Rankings in memory, at most `most` bytes; the oldest are released first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._bytes = 0
        self._held: dict[_OpenDecision, _CachedRanking] = {}  # oldest first

    def add(self, opened: _OpenDecision, held: _CachedRanking) -> None:
        self.release(opened)
        self._held[opened] = held
        self._bytes += held.bytes
        while self._bytes > self._most:
            self.release(next(iter(self._held)))

    def find(self, opened: _OpenDecision) -> _CachedRanking | None:
        return self._held.get(opened)

    def release(self, opened: _OpenDecision) -> _CachedRanking | None:
        """Remove the ranking of a decision, and return it."""
        held = self._held.pop(opened, None)
        self._bytes -= 0 if held is None else held.bytes
        return held

    def release_before(self, start: float) -> None:
        """Release the rankings of decisions before `start` (unix seconds)."""
        for opened in [each for each in self._held if each.decision.time < start]:
            self.release(opened)


class DecisionLog:
    """Log of one extender; runs in the event loop. `now` returns unix seconds, `window` the label of the window that
    the load is averaged over; `most_held` limits the bytes of arrays in memory. `is_known` returns whether the API has
    the pod of a decision: a decision about another pod is recorded once the API reports the pod, and otherwise
    forgotten, so that forged requests displace no decisions. By default, all pods are known."""

    def __init__(
        self,
        recorder: DecisionRecorder,
        table: ClusterTable,
        *,
        now: Callable[[], float],
        window: Callable[[], str] = str,
        most_held: int = HELD_BYTES,
        is_known: Callable[[PlacementDecision], bool] = lambda _: True,
    ) -> None:
        self._recorder = recorder
        self._table = table
        self._now = now
        self._window = window
        self._is_known = is_known
        self._open: dict[str, _OpenDecision] = {}
        self._unknown: dict[str, _OpenDecision] = {}  # of pods that the API has not reported
        self._rankings = {True: _RankingCache(most_held), False: _RankingCache(min(most_held, HELD_UNREPORTED_BYTES))}
        """By whether the API has reported the pod."""
        self._detailed: deque[_OpenDecision] = deque()  # oldest first: decisions not reduced to an outline yet
        self._failure_logged = False

    # --- events from the extender ------------------------------------------------------------------------------------

    def filtered(
        self,
        profile: str,
        info: PodInfo,
        names: Sequence[str],
        filtered: FilterResult,
        *,
        asked: int,
        reserved: str = "",
    ) -> None:
        """Record a filter response: of `asked` nodes the table contains `names`; the pod is reserved on the node
        `reserved`, "" if none."""
        if self._recorder.is_on:
            self._later(self._record_filtered, self._begin(profile, info), filtered, names, asked, reserved)

    def ranked(self, profile: ProfileRunner, info: PodInfo, answered: RankedResponse) -> None:
        """Record a prioritize response, as part of the filter decision before it if that is recent."""
        if not self._recorder.is_on:
            return
        name = profile.settings.name
        opened = self._open.get(info.key) or self._unknown.get(info.key)
        if opened is None or opened.is_ranked or not self._is_recent(opened, profile=name):
            opened = self._begin(name, info)
        opened.is_ranked = True
        self._later(self._record_ranked, opened, answered, self._table.load.sampled(), profile.most)

    def _is_recent(self, opened: _OpenDecision, *, profile: str) -> bool:
        return opened.decision.profile == profile and self._now() - opened.decision.time <= DECISION_SPAN_S

    def bound(self, uid: str, node: str) -> None:
        """Record that a pod was bound, through the extender or not."""
        opened = self._open.get(uid)
        if opened is not None:
            self._close(uid, self._outcome(opened, node))

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """Record a pod event. Call this before updating the table: the pod's own reservation must not count when the
        chosen node is explained."""
        if not self._open and not self._unknown:
            return
        if old is not None and (new is None or identity(old) != identity(new)):
            self._close(identity(old), PlacementOutcome(DELETED, self._now()))
        if new is not None and (opened := self._unknown.pop(identity(new), None)) is not None:
            held = self._release(opened)
            opened.is_reported = True
            if held is not None:
                self._rankings[True].add(opened, held)
            self._add(self._open, opened, most=MOST_OPEN)
            self._recorder.put(opened.key, opened.decision)
        if new is not None and new.spec.node_name:
            self.bound(identity(new), new.spec.node_name)

    # --- recording ---------------------------------------------------------------------------------------------------

    def _begin(self, profile: str, info: PodInfo) -> _OpenDecision:
        """Start a new decision that replaces the previous one about the same pod."""
        now = self._now()
        columns = self._table.load.columns
        decision = records.new_decision(
            info, profile=profile, time=now, columns=columns, window=self._window(), identity=info.key
        )
        opened = _OpenDecision(self._recorder.new_key(now), decision, self._is_known(decision))
        for before in (self._open.pop(info.key, None), self._unknown.pop(info.key, None)):
            if before is None:
                continue
            self._release(before)
            if now - before.decision.time < FASTEST_S:
                opened.burst = before.burst + 1
                if opened.burst > MOST_OF_BURST:
                    self._recorder.drop(before.key)
        if opened.is_reported:
            self._add(self._open, opened, most=MOST_OPEN)
        else:
            self._add(self._unknown, opened, most=MOST_UNKNOWN)
        self._detailed.append(opened)
        return opened

    def _add(self, kept: dict[str, _OpenDecision], opened: _OpenDecision, *, most: int) -> None:
        if len(kept) >= most:
            self._release(kept.pop(next(iter(kept))))
        kept[opened.decision.uid] = opened

    def _later(self, take: Callable[..., None], opened: _OpenDecision, *what: Any) -> None:
        """Schedule `take` to run after the response is sent."""
        asyncio.get_running_loop().call_soon(self._taken, take, opened, *what)

    def _taken(self, take: Callable[..., None], opened: _OpenDecision, *what: Any) -> None:
        try:
            with self._table.without_reservation(opened.decision.uid):
                take(opened, *what)
        except Exception as error:  # a third-party plug-in may fail to give a reason
            self._log_loss(opened.decision, error)
            return
        if opened.is_reported:
            self._recorder.put(opened.key, opened.decision)

    def _log_loss(self, decision: PlacementDecision, error: Exception) -> None:
        """Count a lost decision; log only the first, since the same error may occur with every pod."""
        self._recorder.count_lost()
        if not self._failure_logged:
            what = "decision about pod %s/%s not recorded (further failures are only counted): %s"
            log.error(what, decision.namespace, decision.name, error, exc_info=error)
        self._failure_logged = True

    def _record_filtered(
        self, opened: _OpenDecision, filtered: FilterResult, names: Sequence[str], asked: int, reserved: str
    ) -> None:
        passed = records.filter_record(filtered, names, asked=asked, reserved=reserved)
        opened.decision = msgspec.structs.replace(opened.decision, filtered=passed)

    def _record_ranked(self, opened: _OpenDecision, answered: RankedResponse, sampled: F64, most: int) -> None:
        ranked, names, of_nodes = answered.ranked, answered.names, sampled[answered.rows]
        ranking = records.ranking_record(
            ranked,
            names,
            sampled=of_nodes,
            asked=answered.asked,
            most=most,
            reserved=answered.reserved,
            withheld=not answered.scores_sent,
        )
        opened.decision = msgspec.structs.replace(opened.decision, ranking=ranking)
        kept = self._open if opened.is_reported else self._unknown
        if len(names) > records.BEST_NODES and kept.get(opened.decision.uid) is opened:
            held = _CachedRanking(ranked, names, of_nodes, _size_of(ranked) + NAME_BYTES * len(names))
            self._rankings[opened.is_reported].add(opened, held)

    def _release(self, opened: _OpenDecision) -> _CachedRanking | None:
        return self._rankings[opened.is_reported].release(opened)

    def release_old(self) -> None:
        """Free memory: reduce old open decisions to an outline, since a pod may wait for days, and drop old arrays and
        decisions about pods that the API does not report."""
        now = self._now()
        for uid in [uid for uid, each in self._unknown.items() if now - each.decision.time > DECISION_SPAN_S]:
            self._release(self._unknown.pop(uid))
        while self._detailed and now - self._detailed[0].decision.time > DECISION_SPAN_S:
            opened = self._detailed.popleft()
            opened.decision = records.outline(opened.decision)
        for cache in self._rankings.values():
            cache.release_before(now - HELD_S)

    # --- outcomes ----------------------------------------------------------------------------------------------------

    def _outcome(self, opened: _OpenDecision, node: str) -> PlacementOutcome:
        """Return the outcome "bound", with the node's scores if it is not among the recorded best."""
        bound = PlacementOutcome(BOUND, self._now(), node)
        held, ranking = self._rankings[opened.is_reported].find(opened), opened.decision.ranking
        if ranking is None or node in ranking.best.names:
            return bound
        names = ranking.best.names if held is None else held.names
        if node not in names:
            return msgspec.structs.replace(bound, asked=held is None and ranking.of > len(names))
        assert held is not None
        try:
            with self._table.without_reservation(opened.decision.uid):
                chosen = records.nodes_at([names.index(node)], held.ranked, held.names, sampled=held.sampled)
        except Exception as error:
            self._log_loss(opened.decision, error)
            return bound
        return msgspec.structs.replace(bound, chosen=chosen)

    def _close(self, uid: str, outcome: PlacementOutcome) -> None:
        opened = self._open.pop(uid, None)
        if opened is None:
            return
        self._release(opened)
        self._recorder.put_outcome(opened.key, node=outcome.node, outcome=records.encode_outcome(outcome))

    async def run_flush_loop(self) -> None:
        """Store new decisions every second, forever."""
        errors = RepeatedErrors(log)
        while True:
            await asyncio.sleep(FLUSH_S)
            try:
                self.release_old()
                await self._recorder.flush()
                errors.succeeded()
            except Exception as error:
                errors.failed(error, "storing decisions failed; retrying in the next second")


def _size_of(ranked: RankResult) -> int:
    arrays = [ranked.values]
    for _, scores in ranked.parts:
        arrays += [scores.values, *scores.steps.values()]
    return sum(array.nbytes for array in arrays)
