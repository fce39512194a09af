"""Shadow mode: what other profiles would have done with each pod that somebody bound.

Whoever bound it, the watch tells. The profiles of `[scheduler] shadow` are then asked in a task of their own, one
profile at a time and others in between, over the table as if the pod were on no node yet. After a quarter hour, the
load of the nodes that they chose is looked at again. No request waits for any of it, what waits itself is bounded, and
what goes wrong here costs the one binding, which is then left out and counted.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from scorers.cluster.pods import ENDED, PodInfo, identity, pod_info, scheduled_at
from scorers.cluster.resources import CPU
from scorers.cluster.table import Table
from scorers.decisions.records import told_scores
from scorers.plugin_api.wire import MOST
from scorers.profiles.ranking import Profile
from scorers.shadow import records
from scorers.shadow.records import GRACE_S, LATER_S, MICROSECONDS, Candidates, Choice, Kind, Load, ShadowBinding
from watcher.core.decisions import DecisionStore, DecisionsUnavailable
from watcher.core.kubernetes.objects import Node, Pod
from watcher.model import MetricType

log = logging.getLogger(__name__)

I64 = npt.NDArray[np.int64]

LATE_S = 30.0
"""A binding that is older when it is seen is left out: the load of then is not known any more."""
HEARD_S = 10.0
MOST_HEARD = 256
"""Pods whose candidates are remembered: 10 MB at 5,000 nodes."""
MOST_WAITING = 1000
MOST_OBSERVED = 20_000
"""Bindings of the last quarter hour whose load is to be looked at again: 1,300 a minute."""
AT_ONCE = 200
LOOK_EVERY_S = 1.0
HARD = frozenset({"NoSchedule", "NoExecute"})
_CORDONED = "node.kubernetes.io/unschedulable:NoSchedule"


class LeftOut(Exception):
    """Nothing is said of a binding, for one of the reasons of records.LEFT_OUT."""


@dataclass(frozen=True, slots=True)
class _Heard:
    """kube-scheduler asked about a pod and the nodes in these rows."""

    at: float
    rows: I64
    verb: str


@dataclass(frozen=True, slots=True)
class _Bound:
    """The watch told of a binding."""

    pod: Pod
    at: float
    heard: I64 | None


class ShadowMode:
    """Over the table of an extender and its profiles, of which `names` are asked; both change under it as settings are
    read again. `now` gives unix seconds."""

    def __init__(
        self,
        table: Table,
        profiles: Mapping[str, Profile],
        names: Sequence[str],
        store: DecisionStore,
        *,
        now: Callable[[], float],
    ) -> None:
        self.names = tuple(names)
        self._table = table
        self._profiles = profiles
        self._store = store
        self._now = now
        self._begun = now()
        self._newest = 0
        self._heard: dict[str, _Heard] = {}
        self._waiting: deque[_Bound] = deque()
        self._there_are = asyncio.Event()
        self._observing: deque[tuple[int, ShadowBinding]] = deque()
        self._new: dict[int, ShadowBinding] = {}
        self._lost = 0
        self._restricted: dict[str, frozenset[str]] = {}
        self._fails = False
        self._unread = True
        self.chosen: Counter[tuple[str, Kind]] = Counter()
        """Bindings by profile and what it would have done, since the start."""
        self.left_out: Counter[str] = Counter()
        """Bindings of which nothing is said, by reason."""

    @property
    def is_on(self) -> bool:
        """Whether any profile is asked, and what it says is kept."""
        return bool(self.names) and self._store.decisions_kept > 0

    @property
    def observing(self) -> int:
        """How many bindings wait to be looked at again."""
        return len(self._observing)

    @property
    def source(self) -> str:
        """Whence the load comes that profiles go by, "" where there is none."""
        columns = self._table.load.columns
        return "" if columns is None else columns.source

    def settings(self) -> dict[str, str]:
        """By profile that is asked, what tells its settings from others."""
        there = {name: self._profiles.get(name) for name in self.names}
        return {name: records.settings_of(profile.settings) for name, profile in there.items() if profile is not None}

    # --- what it is told ---------------------------------------------------------------------------------------------

    def heard(self, key: str, rows: I64, *, verb: str) -> None:
        """kube-scheduler asks about a pod. Of filter and prioritize, the nodes of the former count: what our own
        filters took away, other profiles may choose."""
        if not self.is_on:
            return
        now, before = self._now(), self._heard.pop(key, None)
        if verb == "prioritize" and before is not None and before.verb == "filter" and now - before.at <= HEARD_S:
            self._heard[key] = before
            return
        self._heard[key] = _Heard(now, rows, verb)
        if len(self._heard) > MOST_HEARD:
            del self._heard[next(iter(self._heard))]

    def node_changed(self, name: str, node: Node | None) -> None:
        """Of nodes only what keeps pods off is remembered, of those that have such."""
        self._restricted.pop(name, None)
        if node is None:
            return
        taints = {f"{each.key}={each.value}:{each.effect}" for each in node.spec.taints if each.effect in HARD}
        if node.spec.unschedulable:
            taints.add(_CORDONED)
        if taints:
            self._restricted[name] = frozenset(taints)

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """A pod came, changed or went; a few comparisons, all else is done later."""
        if not self.is_on or new is None or not new.spec.node_name or new.status.phase in ENDED:
            return
        if old is not None and identity(old) == identity(new) and old.spec.node_name:
            return
        now, at = self._now(), scheduled_at(new)
        heard = self._heard.pop(identity(new), None)
        if any(owner.kind == "Node" for owner in new.metadata.owner_references):
            return  # a mirror of what the kubelet runs by itself: nobody bound it
        if old is None and (at is None or at < self._begun):
            return  # it was there before us
        if at is not None and now - at > LATE_S:
            self._leave_out(new, "seen_late", at=now)
            return
        if len(self._waiting) >= MOST_WAITING:
            self._leave_out(None, "too_many", at=now)
            return
        self._waiting.append(_Bound(new, now, None if heard is None or now - heard.at > HEARD_S else heard.rows))
        self._there_are.set()

    # --- asking the profiles -----------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Ask about each binding as it comes, and look again later, until cancelled."""
        async with asyncio.TaskGroup() as both:
            both.create_task(self._ask_on(), name="scheduling-shadow-asking")
            both.create_task(self._look_on(), name="scheduling-shadow-looking")

    async def _ask_on(self) -> None:
        while True:
            await self._there_are.wait()
            while self._waiting:
                bound = self._waiting.popleft()
                try:
                    told = await self._asked(bound)
                    self.chosen.update((name, choice.kind) for name, choice in told.choices.items())
                    self._remember(told)
                except LeftOut as reason:
                    self._leave_out(bound.pod, str(reason), at=bound.at)
                except Exception as error:  # of a plug-in of somebody else, say
                    self._tell_failure(bound.pod, error)
                    self._leave_out(bound.pod, "failed", at=bound.at)
                await asyncio.sleep(0)
            self._there_are.clear()

    def _tell_failure(self, pod: Pod, error: Exception) -> None:
        """The first time; it is counted, and would come again with every pod."""
        if not self._fails:
            what = "shadow mode cannot tell of the pod %s/%s: %s"
            log.error(what, pod.metadata.namespace, pod.metadata.name, error, exc_info=error)
        self._fails = True

    async def _asked(self, bound: _Bound) -> ShadowBinding:
        """What each profile would have done. Raises LeftOut."""
        info = _info(bound.pod)
        node = bound.pod.spec.node_name
        names, candidates = self._candidates(bound, info)
        choices: dict[str, Choice] = {}
        for name in self.names:
            await asyncio.sleep(0)  # let requests through
            profile = self._profiles.get(name)
            if profile is not None:  # else settings were read again just now
                choices[name] = self._choice(profile, info, node, names)
        nodes = sorted({node, *(choice.node for choice in choices.values() if choice.kind == "other")})
        return ShadowBinding(
            time=bound.at,
            namespace=bound.pod.metadata.namespace,
            name=bound.pod.metadata.name,
            uid=identity(bound.pod),
            node=node,
            candidates=candidates,
            of=len(names),
            pod_cpu=self._share_of(info, node),
            choices=choices,
            load=self._load_of(nodes),
        )

    def _candidates(self, bound: _Bound, info: PodInfo) -> tuple[list[str], Candidates]:
        """The nodes that could have had the pod, its own among them. Raises LeftOut."""
        table, node = self._table, bound.pod.spec.node_name
        row = table.row.get(node)
        if row is None or not table.known[row]:
            raise LeftOut("node_unknown")
        if not table.measures(MetricType.CPU) or np.isnan(table.load.average(MetricType.CPU)[row]):
            raise LeftOut("no_load")
        candidates: Candidates = "estimated" if bound.heard is None else "asked"
        if bound.heard is None:
            rows = self._fitting(bound.pod, info, row)
        else:
            rows = bound.heard[table.known[bound.heard]]
        names = sorted({node, *(table.names[i] for i in rows.tolist())})
        if len(names) < 2:
            raise LeftOut("no_choice")
        return names, candidates

    def _fitting(self, pod: Pod, info: PodInfo, row: int) -> I64:
        """The nodes where the pod's requests fit and its selector is met, that are not kept from it by taints which the
        node that it was bound to does not have. Raises LeftOut where rules that we do not read say more."""
        if pod.spec.affinity or pod.spec.topology_spread_constraints:
            raise LeftOut("constraints")
        table = self._table
        fits = table.known.copy()
        with table.absent(info.key):
            room = table.allocatable.column("pods")
            fits &= (room == 0) | (table.pods < room)  # 0: it does not say
            for resource, wanted in info.requests.items():
                if wanted > 0:
                    fits &= table.allocatable.column(resource) - table.requested.column(resource) >= wanted
        tolerated = self._restricted.get(table.names[row], frozenset())
        for name, taints in self._restricted.items():
            if not taints <= tolerated and name in table.row:
                fits[table.row[name]] = False
        if selector := pod.spec.node_selector:
            for i in np.flatnonzero(fits).tolist():
                there = table.node(table.names[i])
                labels = {} if there is None else there.metadata.labels
                fits[i] = all(labels.get(key) == value for key, value in selector.items())
        return np.flatnonzero(fits)

    def _choice(self, profile: Profile, info: PodInfo, node: str, names: Sequence[str]) -> Choice:
        """Where the profile would have put the pod, which is on no node while it is asked."""
        table, now = self._table, self._now()
        settings = records.settings_of(profile.settings)
        there = [name for name in names if (row := table.row.get(name)) is not None and table.known[row]]
        rows = np.fromiter((table.row[name] for name in there), dtype=np.int64, count=len(there))
        with table.absent(info.key):
            passed = np.ones(len(rows), dtype=np.bool_)
            for _, verdicts in profile.filter(info, rows, now=now).parts:
                passed &= verdicts.passed
            left, rows = [there[i] for i in np.flatnonzero(passed).tolist()], rows[passed]
            if not left:
                return Choice(settings, "none")
            ranked = profile.rank(info, rows, now=now)
            whole = told_scores(ranked.values, 100 if profile.settings.precise_scores else MOST)
            best = profile.best(info, rows, left, whole)
        if best is None:
            return Choice(settings, "none")
        if left[best] == node:
            return Choice(settings, "same")
        if node in left and whole[left.index(node)] == whole[best]:
            return Choice(settings, "tied")
        return Choice(settings, "other", left[best])

    def _share_of(self, info: PodInfo, node: str) -> float | None:
        row = self._table.row.get(node)
        there = 0 if row is None else int(self._table.capacity.column(CPU)[row])
        return round(100.0 * info.requests.get(CPU, 0) / there, 6) if there else None

    def _load_of(self, nodes: Sequence[str]) -> dict[str, Load]:
        """As the profiles see it now."""
        table = self._table
        kinds = [table.load.average(kind) for kind in (MetricType.CPU, MetricType.MEMORY)]
        found: dict[str, Load] = {}
        for node in nodes:
            row = table.row.get(node)
            cpu, memory = (None, None) if row is None else (_finite(each[row]) for each in kinds)
            found[node] = cpu, memory
        return found

    # --- a quarter hour later ----------------------------------------------------------------------------------------

    async def _look_on(self) -> None:
        while True:
            try:
                if self._unread and self.is_on:
                    await self._read_unobserved()
                self.look()
            except Exception:
                log.exception("shadow mode could not look again at what was bound")
            await asyncio.sleep(LOOK_EVERY_S)

    def look(self) -> None:
        """Look again at what is due, and hand over what is to be kept; once a second."""
        now = self._now()
        for _ in range(AT_ONCE):
            if not self._observing or self._observing[0][1].time + LATER_S > now:
                break
            key, binding = self._observing.popleft()
            if now <= binding.time + LATER_S + GRACE_S:
                self._new[key] = msgspec.structs.replace(binding, later=self._load_of(sorted(binding.load)))
        self.flush()

    async def _read_unobserved(self) -> None:
        """What a process before us did not live to see the end of."""
        now = self._now()
        try:
            start = int((now - LATER_S - GRACE_S) * MICROSECONDS)
            found = await self._store.shadows(start=start, limit=MOST_OBSERVED)
        except DecisionsUnavailable:
            return  # asked again with the next look, as long as that helps
        self._unread = False
        ours = {key for key, _ in self._observing} | self._new.keys()
        read = ((each.time, records.read(each)) for each in found if each.time not in ours)
        old = [(key, each) for key, each in read if each is not None and each.names_another and each.later is None]
        self._observing = deque(sorted([*old, *self._observing], key=lambda each: each[0])[-MOST_OBSERVED:])

    def flush(self) -> None:
        """Hand over what is new."""
        if self._new or self._lost:
            kept = [records.stored(key, each) for key, each in self._new.items()]
            lost, self._lost, self._new = self._lost, 0, {}
            if self._store.decisions_kept > 0:
                self._store.keep_shadows(kept, lost=lost)

    def _leave_out(self, pod: Pod | None, reason: str, *, at: float) -> None:
        self.left_out[reason] += 1
        if pod is None:
            last = next(reversed(self._new), None)
            before = None if last is None else self._new[last]
            if last is not None and before is not None and (before.left_out, before.uid) == (reason, ""):
                self._new[last] = msgspec.structs.replace(before, count=before.count + 1)
                return
            self._remember(ShadowBinding(at, left_out=reason))
            return
        metadata = pod.metadata
        told = ShadowBinding(at, metadata.namespace, metadata.name, identity(pod), pod.spec.node_name, left_out=reason)
        self._remember(told)

    def _remember(self, binding: ShadowBinding) -> None:
        self._newest = key = max(self._newest + 1, int(binding.time * MICROSECONDS))
        self._new[key] = binding
        if len(self._new) > MOST_WAITING:
            del self._new[next(iter(self._new))]
            self._lost += 1
        if binding.names_another:
            self._observing.append((key, binding))
            if len(self._observing) > MOST_OBSERVED:
                self._observing.popleft()


def _info(pod: Pod) -> PodInfo:
    try:
        return pod_info(pod)
    except ValueError:
        raise LeftOut("pod_unreadable") from None


def _finite(value: np.float64) -> float | None:
    return None if np.isnan(value) else round(float(value), 4)
