"""Shadow mode: records how other profiles would have placed each bound pod.

The watch reports every binding, whichever client made it. For each binding, the profiles of `[scheduler] shadow` are
evaluated in a background task, one profile at a time, over the table as if the pod were on no node. After 15 minutes,
the load of the nodes that they chose is read again. No request waits for this, all queues are bounded, and an error
affects only one binding, which is left out and counted.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from scorers.cluster.pods import ENDED, PodInfo, identity, pod_info, scheduled_at
from scorers.cluster.request_ratio import requests_to_usage
from scorers.cluster.table import ClusterTable
from scorers.decisions.recorder import DecisionRecorder
from scorers.decisions.records import (
    GRACE_S,
    LATER_S,
    Candidates,
    Choice,
    Kind,
    Load,
    ShadowBinding,
    decode_binding,
)
from scorers.plugin_api.wire import integer_scores
from scorers.profiles.default_filters import lacking_room, matches_selector
from scorers.profiles.overload_risk import overload_notices
from scorers.profiles.profiles import ProfileSettings
from scorers.profiles.ranking import ProfileRunner
from watcher.arrays import I64
from watcher.core.decisions import MICROSECONDS, DecisionQuery, DecisionsUnavailable
from watcher.core.kubernetes.objects import Node, Pod
from watcher.core.kubernetes.pod_origin import mirrored_uid
from watcher.core.kubernetes.pod_resources import CPU
from watcher.model import MetricType
from watcher.platform.repeated_errors import RepeatedErrors

log = logging.getLogger(__name__)


MAX_BINDING_AGE_S = 30.0
"""Maximum age of a binding in seconds when it is observed; the load at the time of an older binding is unknown, so the
binding is left out."""
REQUEST_TTL_S = 10.0
MAX_REQUESTS = 256
"""Maximum number of pods whose candidate nodes are stored: 10 MB at 5,000 nodes."""
MOST_UNREPORTED = 64
"""The same for pods that the API has not reported, in addition."""
MOST_WAITING = 1000
MOST_OBSERVED = 20_000
"""Maximum number of bindings that wait for the later reading of the load: 1,300 a minute over 15 minutes."""
AT_ONCE = 200
LOOK_EVERY_S = 1.0
HARD = frozenset({"NoSchedule", "NoExecute"})
_CORDONED = "node.kubernetes.io/unschedulable:NoSchedule"


class LeftOut(Exception):
    """The binding cannot be evaluated; the message is a key of LEFT_OUT."""


@dataclass(frozen=True, slots=True)
class _CandidateNodes:
    """A kube-scheduler request about a pod and the nodes in these rows, at `at` (unix seconds)."""

    at: float
    rows: I64
    verb: str


@dataclass(frozen=True, slots=True)
class _PendingBinding:
    """A binding to evaluate, observed at `at` (unix seconds); `candidates` are the rows of the candidates, None if
    unknown."""

    pod: Pod
    at: float
    candidates: I64 | None


class ShadowMode:
    """Shadow mode over an extender's table and profiles; `names` are the profiles to evaluate. A reload of the settings
    may change both. `now` returns unix seconds."""

    def __init__(
        self,
        table: ClusterTable,
        profiles: Mapping[str, ProfileRunner],
        names: Sequence[str],
        recorder: DecisionRecorder,
        *,
        now: Callable[[], float],
    ) -> None:
        self.names = tuple(names)
        self._table = table
        self._profiles = profiles
        self._recorder = recorder
        self._now = now
        self._started = now()
        self._heard: dict[str, _CandidateNodes] = {}
        self._unreported: dict[str, _CandidateNodes] = {}  # of pods that the API has not reported
        self._waiting: deque[_PendingBinding] = deque()
        self._has_waiting = asyncio.Event()
        self._observing: deque[tuple[int, ShadowBinding]] = deque()
        self._too_many = (0, ShadowBinding(0.0))  # key and record of the last bindings that could not wait
        self._taints: dict[str, frozenset[str]] = {}
        self._failure_logged = False
        self._needs_recovery = True
        self.chosen: Counter[tuple[str, Kind]] = Counter()
        """Number of bindings by profile and kind of choice, since the start."""
        self.left_out: Counter[str] = Counter()
        """Number of bindings that were not evaluated, by reason."""

    @property
    def is_on(self) -> bool:
        """Whether any profile is evaluated and the results are stored."""
        return bool(self.names) and self._recorder.is_on

    @property
    def off_hint(self) -> str:
        """How to switch shadow mode on, "" if it is on."""
        if self.is_on:
            return ""
        return (
            'set store.decisions = "24h" (the retention time)'
            if self.names
            else 'set [scheduler] shadow = ["default", …]'
        )

    @property
    def source(self) -> str:
        """Name of the load source, "" without load."""
        columns = self._table.load.columns
        return "" if columns is None else columns.source

    def _evaluated(self) -> dict[str, ProfileSettings]:
        found = {name: self._profiles.get(name) for name in self.names}
        return {name: profile.settings for name, profile in found.items() if profile is not None}

    def settings(self) -> dict[str, str]:
        """Return a hash of the settings of each evaluated profile."""
        return {name: settings_of(profile) for name, profile in self._evaluated().items()}

    def notices(self) -> dict[str, tuple[str, ...]]:
        """Return what to know about each evaluated profile before it is used."""
        return {name: overload_notices(profile) for name, profile in self._evaluated().items()}

    def requests_to_usage(self) -> dict[str, float]:
        """Return the current ratio of requests to usage by resource."""
        return requests_to_usage(self._table)

    # --- events ------------------------------------------------------------------------------------------------------

    def record_request(self, key: str, rows: I64, *, verb: str, is_reported: bool = True) -> None:
        """Record the candidates of a kube-scheduler request. The nodes of filter take precedence over those of
        prioritize, because other profiles may choose nodes that the extender's filters rejected. `is_reported`: whether
        the API has the pod; other requests may be forged, and displace only each other."""
        if not self.is_on:
            return
        now, before = self._now(), self._take_request(key)
        found = _CandidateNodes(now, rows, verb)
        if verb == "prioritize" and before is not None and before.verb == "filter" and now - before.at <= REQUEST_TTL_S:
            found = before
        kept, most = (self._heard, MAX_REQUESTS) if is_reported else (self._unreported, MOST_UNREPORTED)
        kept[key] = found
        if len(kept) > most:
            del kept[next(iter(kept))]

    def _take_request(self, key: str) -> _CandidateNodes | None:
        """Remove and return the candidates of the newest request about a pod."""
        unreported = self._unreported.pop(key, None)
        return self._heard.pop(key, unreported)

    def node_changed(self, name: str, node: Node | None) -> None:
        """Record the taints of a node that keep pods off."""
        self._taints.pop(name, None)
        if node is None:
            return
        taints = {f"{each.key}={each.value}:{each.effect}" for each in node.spec.taints if each.effect in HARD}
        if node.spec.unschedulable:
            taints.add(_CORDONED)
        if taints:
            self._taints[name] = frozenset(taints)

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """Queue a new binding; cheap, evaluation happens later."""
        if not self.is_on or new is None or not new.spec.node_name or new.status.phase in ENDED:
            return
        if old is not None and identity(old) == identity(new) and old.spec.node_name:
            return
        now, at = self._now(), scheduled_at(new)
        received = self._take_request(identity(new))
        if mirrored_uid(new.metadata, new.spec.node_name):
            return  # mirror pod of a static pod: it was not bound by a scheduler
        if old is None and (at is None or at < self._started):
            return  # bound before this process started
        if at is not None and now - at > MAX_BINDING_AGE_S:
            self._leave_out(new, "seen_late", at=now)
            return
        if len(self._waiting) >= MOST_WAITING:
            self._leave_out_unqueued(at=now)
            return
        self._waiting.append(
            _PendingBinding(new, now, None if received is None or now - received.at > REQUEST_TTL_S else received.rows)
        )
        self._has_waiting.set()

    # --- evaluating the profiles -------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Evaluate bindings as they come and read their load again later, until cancelled."""
        async with asyncio.TaskGroup() as both:
            both.create_task(self._evaluate_loop(), name="scheduling-shadow-asking")
            both.create_task(self._observe_loop(), name="scheduling-shadow-looking")

    async def _evaluate_loop(self) -> None:
        while True:
            await self._has_waiting.wait()
            while self._waiting:
                bound = self._waiting.popleft()
                try:
                    message = await self._evaluate(bound)
                    self.chosen.update((name, choice.kind) for name, choice in message.choices.items())
                    self._remember(message)
                except LeftOut as reason:
                    self._leave_out(bound.pod, str(reason), at=bound.at)
                except Exception as error:  # for example, of a third-party plug-in
                    self._log_failure(bound.pod, error)
                    self._leave_out(bound.pod, "failed", at=bound.at)
                await asyncio.sleep(0)
            self._has_waiting.clear()

    def _log_failure(self, pod: Pod, error: Exception) -> None:
        """Log the first failure only; the same error may occur with every pod. Failures are counted."""
        if not self._failure_logged:
            what = "shadow mode failed for pod %s/%s (further failures are only counted): %s"
            log.error(what, pod.metadata.namespace, pod.metadata.name, error, exc_info=error)
        self._failure_logged = True

    async def _evaluate(self, bound: _PendingBinding) -> ShadowBinding:
        """Return the choice of each profile. Raises LeftOut."""
        info = _info(bound.pod)
        node = bound.pod.spec.node_name
        names, candidates = self._candidates(bound, info)
        choices: dict[str, Choice] = {}
        for name in self.names:
            await asyncio.sleep(0)  # let requests through
            profile = self._profiles.get(name)
            if profile is not None:  # otherwise a reload has just removed it
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

    def _candidates(self, bound: _PendingBinding, info: PodInfo) -> tuple[list[str], Candidates]:
        """Return the candidate nodes, including the actual node. Raises LeftOut."""
        table, node = self._table, bound.pod.spec.node_name
        row = table.row.get(node)
        if row is None or not table.known[row]:
            raise LeftOut("node_unknown")
        if not table.has_load(MetricType.CPU) or np.isnan(table.load.average(MetricType.CPU)[row]):
            raise LeftOut("no_load")
        candidates: Candidates = "estimated" if bound.candidates is None else "asked"
        if bound.candidates is None:
            rows = self._fitting(bound.pod, info, row)
        else:
            rows = bound.candidates[table.known[bound.candidates]]
        names = sorted({node, *(table.names[i] for i in rows.tolist())})
        if len(names) < 2:
            raise LeftOut("no_choice")
        return names, candidates

    def _fitting(self, pod: Pod, info: PodInfo, row: int) -> I64:
        """Return the rows of the nodes where the pod's requests fit and its selector matches, without hard taints that
        the actual node does not have. Raises LeftOut if the pod has affinity or spreading rules, which are not
        evaluated here."""
        if pod.spec.affinity or pod.spec.topology_spread_constraints:
            raise LeftOut("constraints")
        table = self._table
        fits = table.known.copy()
        with table.without_pod(info.key):
            for lacks in lacking_room(info, table, np.arange(len(table))).values():
                fits &= ~lacks
        tolerated = self._taints.get(table.names[row], frozenset())
        for name, taints in self._taints.items():
            if not taints <= tolerated and name in table.row:
                fits[table.row[name]] = False
        if pod.spec.node_selector:
            for i in np.flatnonzero(fits).tolist():
                fits[i] = matches_selector(pod, table.node(table.names[i]))
        return np.flatnonzero(fits)

    def _choice(self, profile: ProfileRunner, info: PodInfo, node: str, names: Sequence[str]) -> Choice:
        """Return the profile's placement, evaluated as if the pod were on no node."""
        table, now = self._table, self._now()
        settings = settings_of(profile.settings)
        there = [name for name in names if (row := table.row.get(name)) is not None and table.known[row]]
        rows = np.fromiter((table.row[name] for name in there), dtype=np.int64, count=len(there))
        with table.without_pod(info.key):
            passed = np.ones(len(rows), dtype=np.bool_)
            for _, verdicts in profile.filter(info, rows, now=now).parts:
                passed &= verdicts.passed
            left, rows = [there[i] for i in np.flatnonzero(passed).tolist()], rows[passed]
            if not left:
                return Choice(settings, "none")
            ranked = profile.rank(info, rows, now=now)
            whole = integer_scores(ranked.values, profile.most)
            best = profile.likely_node(info, rows, left, whole)
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
        """Return the current load of these nodes in percent."""
        table = self._table
        kinds = [table.load.average(kind) for kind in (MetricType.CPU, MetricType.MEMORY)]
        found: dict[str, Load] = {}
        for node in nodes:
            row = table.row.get(node)
            cpu, memory = (None, None) if row is None else (_finite(each[row]) for each in kinds)
            found[node] = cpu, memory
        return found

    # --- 15 minutes later --------------------------------------------------------------------------------------------

    async def _observe_loop(self) -> None:
        errors = RepeatedErrors(log)
        while True:
            try:
                if self._needs_recovery and self.is_on:
                    await self._read_unobserved()
                self.read_later_loads()
                errors.succeeded()
            except Exception as error:
                errors.failed(
                    error, "shadow mode could not read the later load of bindings; retrying in the next second"
                )
            await asyncio.sleep(LOOK_EVERY_S)

    def read_later_loads(self) -> None:
        """Read the later load of due bindings; called once a second."""
        now = self._now()
        for _ in range(AT_ONCE):
            if not self._observing or self._observing[0][1].time + LATER_S > now:
                break
            key, binding = self._observing.popleft()
            if now <= binding.time + LATER_S + GRACE_S:
                self._recorder.put(key, msgspec.structs.replace(binding, later=self._load_of(sorted(binding.load))))

    async def _read_unobserved(self) -> None:
        """Load the unfinished bindings of a previous process from the store."""
        start = int((self._now() - LATER_S - GRACE_S) * MICROSECONDS)
        try:
            found = await self._recorder.store.decisions(DecisionQuery(kind="shadow", start=start, limit=MOST_OBSERVED))
        except DecisionsUnavailable:
            return  # retried on the next call
        self._needs_recovery = False
        known = {key for key, _ in self._observing}
        others = [each for each in found if each.time not in known and not self._recorder.is_new(each.time)]
        read = ((each.time, decode_binding(each.payload)) for each in others)
        old = [(key, each) for key, each in read if each is not None and each.has_other_choice and each.later is None]
        self._observing = deque(sorted([*old, *self._observing], key=lambda each: each[0])[-MOST_OBSERVED:])

    def _leave_out(self, pod: Pod, reason: str, *, at: float) -> None:
        self.left_out[reason] += 1
        metadata = pod.metadata
        message = ShadowBinding(
            at, metadata.namespace, metadata.name, identity(pod), pod.spec.node_name, left_out=reason
        )
        self._remember(message)

    def _leave_out_unqueued(self, *, at: float) -> None:
        """Leave out a binding that cannot wait for evaluation; until it is stored, one record counts all of these."""
        self.left_out["too_many"] += 1
        key, before = self._too_many
        if self._recorder.is_new(key):
            record = msgspec.structs.replace(before, count=before.count + 1)
        else:
            key, record = self._recorder.new_key(at), ShadowBinding(at, left_out="too_many")
        self._recorder.put(key, record)
        self._too_many = key, record

    def _remember(self, binding: ShadowBinding) -> None:
        key = self._recorder.new_key(binding.time)
        self._recorder.put(key, binding)
        if binding.has_other_choice:
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


def settings_of(profile: ProfileSettings) -> str:
    """Return a hash that is equal for profiles with equal plug-ins, weights, arguments, and score scale."""
    plugins = [(each.name, each.weight, each.points, dict(each.args)) for each in profile.plugins]
    text = msgspec.json.encode((plugins, profile.precise_scores), order="deterministic")
    return hashlib.sha256(text).hexdigest()[:12]
