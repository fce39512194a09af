"""The decision log: what the extender decided, remembered for `load-watcher why`.

Whoever decides hands over what there is anyway, and goes on; what is worth remembering is taken from the arrays once
the answer is on its way, and is encoded and stored once a second, in threads. While it is not known what became of a
pod, the arrays of its ranking are held, within bounds: the node that it will be bound to may have been our 300th.

Nothing here fails a request: what cannot be remembered is lost, and counted.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from scorers.cluster.pods import PodInfo, identity
from scorers.cluster.table import Table
from scorers.decisions import records
from scorers.decisions.records import Decision, Outcome
from scorers.decisions.why import BOUND, DELETED
from scorers.plugin_api.wire import MOST
from scorers.profiles.ranking import Filtered, Profile, Ranked
from watcher.core.decisions import DecisionOutcome, DecisionStore, StoredDecision
from watcher.core.kubernetes.objects import Pod

log = logging.getLogger(__name__)

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

FLUSH_S = 1.0
"""So much is lost when the process is killed."""
TOGETHER_S = 10.0
"""Within these, prioritize belongs to the filter before it; kube-scheduler waits for an extender for 5 s at most."""
MOST_NEW = 1000
"""Decisions and outcomes between two flushes: thirty times what 2,000 pods a minute are."""
MOST_OPEN = 10_000
"""Pods of which it is not known what became."""
HELD_BYTES = 64 << 20
HELD_S = 60.0
"""Arrays of rankings: 26 of 5,000 nodes with all plug-ins, hundreds with one; a bind comes within a second or so."""
NAME_BYTES = 72  # of a node, as Python has it
LONGEST_NAME = 253
MICROSECONDS = 1_000_000


@dataclass(frozen=True, slots=True)
class _Held:
    """A ranking of which it is not known yet which node counts."""

    ranked: Ranked
    names: Sequence[str]
    sampled: F64
    bytes: int


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer to prioritize: of `asked` nodes the table knows `names`, in these rows. `told`: whether kube-scheduler
    was told their scores, `reserved`: the node that the pod is counted on, "" if on none."""

    names: Sequence[str]
    rows: I64
    ranked: Ranked
    asked: int
    told: bool
    reserved: str


@dataclass(slots=True, eq=False)
class _Open:
    """The newest decision about a pod of which it is not known what became; `key` in microseconds is its name."""

    key: int
    decision: Decision
    is_ranked: bool = False
    held: _Held | None = None


class DecisionLog:
    """The log of one extender, in the event loop. `now` gives unix seconds; `window` the label of the window that the
    load is averaged over; `most_held` bytes of arrays are held."""

    def __init__(
        self,
        store: DecisionStore,
        table: Table,
        *,
        now: Callable[[], float],
        window: Callable[[], str] = str,
        most_held: int = HELD_BYTES,
    ) -> None:
        self._store = store
        self._table = table
        self._now = now
        self._window = window
        self._most_held = most_held
        self._newest = 0
        self._open: dict[str, _Open] = {}
        self._holding: deque[_Open] = deque()
        self._whole: deque[_Open] = deque()  # oldest first: decisions that are open with all that is remembered
        self._held_bytes = 0
        self._new: dict[int, Decision] = {}
        self._outcomes: dict[int, DecisionOutcome] = {}
        self._lost = 0
        self._fails = False
        self._flushing = asyncio.Lock()

    @property
    def is_on(self) -> bool:
        """Whether decisions are wanted."""
        return self._store.decisions_kept > 0

    # --- what the extender tells -------------------------------------------------------------------------------------

    def filtered(self, profile: str, info: PodInfo, names: Sequence[str], filtered: Filtered, *, asked: int) -> None:
        """Filter was answered: of `asked` nodes the table knows `names`."""
        if self.is_on:
            self._later(self._take_filtered, self._begin(profile, info), filtered, names, asked)

    def ranked(self, profile: Profile, info: PodInfo, answered: Answered) -> None:
        """Prioritize was answered."""
        if not self.is_on:
            return
        name = profile.settings.name
        opened = self._open.get(info.key)
        if opened is None or opened.is_ranked or not self._is_recent(opened, profile=name):
            opened = self._begin(name, info)
        opened.is_ranked = True
        most = 100 if profile.settings.precise_scores else MOST
        self._later(self._take_ranked, opened, answered, self._table.load.sampled(), most)

    def _is_recent(self, opened: _Open, *, profile: str) -> bool:
        return opened.decision.profile == profile and self._now() - opened.decision.time <= TOGETHER_S

    def bound(self, uid: str, node: str) -> None:
        """A pod was bound, by us or by somebody else."""
        opened = self._open.get(uid)
        if opened is not None:
            self._conclude(uid, self._outcome(opened, node))

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """A pod came, changed or went. To be told before the table is: what the pod itself had reserved is not to be
        counted where its node is explained."""
        if not self._open:
            return
        if old is not None and (new is None or identity(old) != identity(new)):
            self._conclude(identity(old), Outcome(DELETED, self._now()))
        if new is not None and new.spec.node_name:
            self.bound(identity(new), new.spec.node_name)

    # --- taking it down ----------------------------------------------------------------------------------------------

    def _begin(self, profile: str, info: PodInfo) -> _Open:
        """A new decision, in the place of the one before about the same pod."""
        now = self._now()
        self._newest = key = max(self._newest + 1, int(now * MICROSECONDS))
        columns = self._table.load.columns
        decision = records.about(
            info, profile=profile, time=now, columns=columns, window=self._window(), identity=info.key
        )
        self._release(self._open.pop(info.key, None))
        if len(self._open) >= MOST_OPEN:
            self._release(self._open.pop(next(iter(self._open))))
        opened = self._open[info.key] = _Open(key, decision)
        self._whole.append(opened)
        return opened

    def _later(self, take: Callable[..., None], opened: _Open, *what: Any) -> None:
        """When the answer is on its way."""
        asyncio.get_running_loop().call_soon(self._taken, take, opened, *what)

    def _taken(self, take: Callable[..., None], opened: _Open, *what: Any) -> None:
        try:
            with self._table.without(opened.decision.uid):
                take(opened, *what)
        except Exception as error:  # a plug-in of somebody else may not be able to say why
            self._tell_loss(opened.decision, error)
        else:
            self._new.pop(opened.key, None)
            self._new[opened.key] = opened.decision
            if len(self._new) > MOST_NEW:
                del self._new[next(iter(self._new))]
                self._lost += 1

    def _tell_loss(self, decision: Decision, error: Exception) -> None:
        """The first time; it is counted, and would come again with every pod."""
        self._lost += 1
        if not self._fails:
            what = "a decision about %s/%s cannot be remembered: %s"
            log.error(what, decision.namespace, decision.name, error, exc_info=error)
        self._fails = True

    def _take_filtered(self, opened: _Open, filtered: Filtered, names: Sequence[str], asked: int) -> None:
        passed = records.passed(filtered, names, asked=asked)
        opened.decision = msgspec.structs.replace(opened.decision, filtered=passed)

    def _take_ranked(self, opened: _Open, answered: Answered, sampled: F64, most: int) -> None:
        ranked, names, of_nodes = answered.ranked, answered.names, sampled[answered.rows]
        ranking = records.ranking(
            ranked,
            names,
            sampled=of_nodes,
            asked=answered.asked,
            most=most,
            reserved=answered.reserved,
            withheld=not answered.told,
        )
        opened.decision = msgspec.structs.replace(opened.decision, ranking=ranking)
        if len(names) > records.BEST and self._open.get(opened.decision.uid) is opened:
            self._hold(opened, _Held(ranked, names, of_nodes, _size_of(ranked) + NAME_BYTES * len(names)))

    def _hold(self, opened: _Open, held: _Held) -> None:
        opened.held = held
        self._holding.append(opened)
        self._held_bytes += held.bytes
        while self._held_bytes > self._most_held:
            self._release(self._holding.popleft())

    def _release(self, opened: _Open | None) -> None:
        if opened is not None and opened.held is not None:
            self._held_bytes -= opened.held.bytes
            opened.held = None

    def tidy(self) -> None:
        """Hold less of what is old: of a decision only what an outcome asks for, since a pod may wait for days, and no
        arrays."""
        now = self._now()
        while self._whole and now - self._whole[0].decision.time > TOGETHER_S:
            opened = self._whole.popleft()
            opened.decision = records.outline(opened.decision)
        while self._holding and (self._holding[0].held is None or now - self._holding[0].decision.time > HELD_S):
            self._release(self._holding.popleft())

    # --- what became of it -------------------------------------------------------------------------------------------

    def _outcome(self, opened: _Open, node: str) -> Outcome:
        """Bound, with what is known of the node."""
        bound = Outcome(BOUND, self._now(), node)
        held, ranking = opened.held, opened.decision.ranking
        if ranking is None or node in ranking.best.names:
            return bound
        names = ranking.best.names if held is None else held.names
        if node not in names:
            return msgspec.structs.replace(bound, asked=held is None and ranking.of > len(names))
        assert held is not None
        try:
            with self._table.without(opened.decision.uid):
                chosen = records.nodes_at([names.index(node)], held.ranked, held.names, sampled=held.sampled)
        except Exception as error:
            self._tell_loss(opened.decision, error)
            return bound
        return msgspec.structs.replace(bound, chosen=chosen)

    def _conclude(self, uid: str, outcome: Outcome) -> None:
        opened = self._open.pop(uid, None)
        if opened is None:
            return
        self._release(opened)
        told = DecisionOutcome(opened.key, storable(outcome.node), records.encode_outcome(outcome))
        self._outcomes[opened.key] = told
        if len(self._outcomes) > MOST_NEW:
            del self._outcomes[next(iter(self._outcomes))]

    # --- storing -----------------------------------------------------------------------------------------------------

    async def store_on(self) -> None:
        """Store what is new, once a second, for ever."""
        while True:
            await asyncio.sleep(FLUSH_S)
            try:
                self.tidy()
                await self.flush()
            except Exception:
                log.exception("decisions could not be handed to the store")

    async def flush(self) -> None:
        """Hand what is new to the store."""
        async with self._flushing:
            new, self._new = self._new, {}
            outcomes, self._outcomes = self._outcomes, {}
            if not new and not outcomes and not self._lost:
                return
            try:
                rows = await asyncio.to_thread(_rows, new)
            except BaseException:
                self._new, self._outcomes = new | self._new, outcomes | self._outcomes
                raise
            lost, self._lost = self._lost + len(new) - len(rows), 0
            self._store.keep_decisions(rows, list(outcomes.values()), lost=lost)


def _size_of(ranked: Ranked) -> int:
    arrays = [ranked.values]
    for _, scores in ranked.parts:
        arrays += [scores.values, *scores.steps.values()]
    return sum(array.nbytes for array in arrays)


def _rows(new: Mapping[int, Decision]) -> list[StoredDecision]:
    """As they are stored; what cannot be encoded, which is some plug-in's inputs, is left out."""
    rows = []
    for key, decision in new.items():
        try:
            payload = records.encode(decision)
        except (TypeError, ValueError) as error:
            log.debug("a decision of the profile %s cannot be stored: %s", decision.profile, error)
            continue
        namespace, name, uid = (storable(text) for text in (decision.namespace, decision.name, decision.uid))
        rows.append(StoredDecision(key, namespace, name, uid, payload))
        time.sleep(0)  # whoever answers requests wants to go on, and would be let after 5 ms
    return rows


def storable(text: str) -> str:
    """A name as a database takes it: no pod has one that is other, but anybody may ask about one."""
    return text[:LONGEST_NAME].replace("\0", "\ufffd")
