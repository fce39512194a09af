"""Sources of policies while the agent runs: a directory, or the Kubernetes API.

Both follow one rule: a set with a problem is rejected, and the last valid set stays active, except for objects that no
longer exist. A mistake in one policy therefore cannot keep another one active that its owner has deleted. An unreadable
directory or an unreachable API does not count as "no policies": that would undo every action on the node.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import msgspec

from agent.policy import schema
from agent.policy.documents import LARGEST_FILE, PolicyDocument
from agent.policy.objects import as_document
from agent.policy.policy_set import Key, KnownMetrics, PolicyReadResult, PolicySet, read_documents, read_texts
from agent.policy.problems import PolicyLocation, PolicyNotice, PolicyProblem, ProblemCollector
from agent.policy.schema import AVOIDANCE_ACTION, NODE_QOS, POD_QOS
from watcher.core.kubernetes.errors import KubeError, KubeForbidden, KubeNoApi, KubeNotFound, KubeUnreachable
from watcher.core.kubernetes.objects import CustomObject
from watcher.core.kubernetes.wire import Resource
from watcher.decoding.text import decode_text
from watcher.platform.kube.client import KubeClient
from watcher.platform.kube.informer import Informer

log = logging.getLogger(__name__)

SUFFIXES = (".yaml", ".yml", ".json")
API_ORIGIN = "Kubernetes API"
LIST_PATIENCE_S = 30.0
"""Seconds after the start before a missing first list is reported. An error is reported at once."""
POLICY_RESOURCES = {
    group: {
        kind: Resource(group, schema.VERSION, plural, CustomObject)
        for kind, plural in {NODE_QOS: "nodeqoss", AVOIDANCE_ACTION: "avoidanceactions", POD_QOS: "podqoss"}.items()
    }
    for group in schema.GROUPS
}
"""Resources of the API by group and kind."""
DISCOVER_EVERY_S = 60.0
"""Seconds until the next look for definitions that are missing; up to twice as long, by chance."""
RETRY_S = 4.0
"""Upper limit in seconds of the random wait after a look that failed because the API was not reachable."""


@dataclass(frozen=True, slots=True)
class ActivePolicies:
    """The active policies. `policies` is None until the first valid set: until then the agent neither acts nor
    restores. `problems` keep the newest set from becoming active; /explain and /metrics report them."""

    policies: PolicySet | None = None
    problems: tuple[PolicyProblem, ...] = ()
    notices: tuple[PolicyNotice, ...] = ()


class PolicySource(Protocol):
    """A source of the agent's policies."""

    async def start(self) -> None:
        """Start watching for changes; does not fail if the source is not available yet."""

    async def refresh(self) -> ActivePolicies:
        """The active policies. Called once per cycle, and cheap if nothing changed. Raises nothing."""

    async def close(self) -> None:
        """Stop watching and release resources."""


def next_active_policies(old: ActivePolicies, reading: PolicyReadResult, *, there: Collection[Key]) -> ActivePolicies:
    """The active policies after a reading; `there` are the keys of the objects that still exist. Pure."""
    if reading.usable:
        return ActivePolicies(reading.policies, (), reading.notices)
    kept = None
    if old.policies is not None:
        gone = {
            key
            for key, each in old.policies.objects.items()
            if key not in there and each.place.origin not in reading.unread
        }
        kept = old.policies.without(gone)
    return replace(old, policies=kept, problems=reading.problems, notices=reading.notices)


def _tell(old: ActivePolicies, new: ActivePolicies, *, origin: str) -> None:
    """Log changes between `old` and `new`."""
    if new.problems and new.problems != old.problems:
        message = "\n".join(f"  {each}" for each in new.problems)
        kept = "the previous policies stay active" if new.policies is not None else "no policies are active"
        log.warning("policies of %s rejected, %s; problems: %d\n%s", origin, kept, len(new.problems), message)
    elif not new.problems and new.policies is not None and (old.problems or old.policies is None):
        log.info("policies of %s active: %d", origin, len(new.policies.objects))
    for notice in new.notices:
        if notice not in old.notices:
            log.log(logging.WARNING if notice.cure else logging.INFO, "%s", notice)


# --- a directory -----------------------------------------------------------------------------------------------------

Signature = tuple[tuple[str, int, int, int], ...]


class DirectoryPolicies:
    """The policies in the files of a directory (*.yaml, *.yml, *.json; not hidden files, and not subdirectories).
    Follows changes of a mounted ConfigMap, and never reads a part of one."""

    def __init__(self, directory: Path, *, metrics: KnownMetrics) -> None:
        self._directory = directory
        self._metrics = metrics
        self._signature: Signature | None = None
        self._in_force = ActivePolicies()

    async def start(self) -> None:
        """Does nothing: this source has no background task."""

    async def close(self) -> None:
        """Does nothing: this source has no background task."""

    async def refresh(self) -> ActivePolicies:
        """Read the files again if a file was added, removed or changed."""
        return await asyncio.to_thread(self._refresh)

    def _refresh(self) -> ActivePolicies:
        directory = _version_of(self._directory)
        try:
            signature = _signature(directory)
        except OSError as error:
            self._signature = None
            self._take(_unreadable(self._directory, error, self._in_force), there=())
            return self._in_force
        if signature != self._signature:
            reading = _read(directory, [name for name, *_ in signature], metrics=self._metrics)
            # A file was removed during the read: read again in the next cycle.
            self._signature = None if reading.unread else signature
            self._take(reading, there=reading.policies.objects.keys())
        return self._in_force

    def _take(self, reading: PolicyReadResult, *, there: Collection[Key]) -> None:
        old, self._in_force = self._in_force, next_active_policies(self._in_force, reading, there=there)
        _tell(old, self._in_force, origin=str(self._directory))


def check_policies(path: Path, *, metrics: KnownMetrics) -> PolicyReadResult:
    """The result of `load-watcher agent --check PATH`: all problems of the policies in a directory or in one file, also
    those that a running agent only reports. Raises nothing."""
    reading = read_policies(path, metrics=metrics)
    failing = tuple(each.as_problem() for each in reading.notices if each.fails_check)
    notices = tuple(each for each in reading.notices if not each.fails_check)
    return replace(reading, problems=(*reading.problems, *failing), notices=notices)


def read_policies(path: Path, *, metrics: KnownMetrics) -> PolicyReadResult:
    """The result of reading the policies in a directory or in one file, as in a running agent. Raises nothing."""
    if path.is_file():
        return _read(path.parent, [path.name], metrics=metrics)
    directory = _version_of(path)
    try:
        names = [name for name, *_ in _signature(directory)]
    except OSError as error:
        return _unreadable(path, error, ActivePolicies())
    reading = _read(directory, names, metrics=metrics)
    if not names:
        notice = PolicyNotice(PolicyLocation(str(path)), f"contains no file *{', *'.join(SUFFIXES)}")
        return replace(reading, notices=(*reading.notices, notice))
    return reading


def _version_of(directory: Path) -> Path:
    """The directory with the current files. In a mounted ConfigMap, that is the target of the link ..data, which the
    kubelet replaces first; then it adds and removes the links to the single files. Without the links of added files, a
    policy that moved to another file would count as deleted."""
    link = directory / "..data"
    return link.resolve() if link.is_symlink() else directory


def _signature(directory: Path) -> Signature:
    """Name, modification time, size and inode of each policy file; changes when a file is added, removed or changed."""
    found = []
    for path in sorted(directory.iterdir()):
        if path.suffix in SUFFIXES and not path.name.startswith("."):
            seen = path.stat()
            found.append((path.name, seen.st_mtime_ns, seen.st_size, seen.st_ino))
    return tuple(found)


def _read(directory: Path, names: Collection[str], *, metrics: KnownMetrics) -> PolicyReadResult:
    texts, unread = dict[str, str](), dict[str, str]()
    for name in names:
        try:
            with (directory / name).open("rb") as file:
                texts[name] = decode_text(file.read(LARGEST_FILE + 1))
        except OSError as error:
            unread[name] = error.strerror or type(error).__name__
        except msgspec.DecodeError as error:
            unread[name] = str(error)
    return read_texts(texts, metrics=metrics, unread=unread)


def _unreadable(directory: Path, error: OSError, old: ActivePolicies) -> PolicyReadResult:
    missing = isinstance(error, FileNotFoundError)
    cure = "Check the path." if missing else "The agent needs to list this directory and to read its files."
    problem = PolicyProblem(
        PolicyLocation(str(directory)), f"cannot be read: {error.strerror or type(error).__name__}", cure
    )
    objects = {} if old.policies is None else old.policies.objects
    return PolicyReadResult(
        PolicySet(objects), (problem,), (), frozenset(each.place.origin for each in objects.values())
    )


# --- the Kubernetes API ----------------------------------------------------------------------------------------------


class PolicyGroup:
    """The informers of one API group. `on_change` is called when an object or the set of served kinds may have
    changed. `every` as DISCOVER_EVERY_S."""

    def __init__(
        self, client: KubeClient, group: str, *, on_change: Callable[[], None], every: float = DISCOVER_EVERY_S
    ) -> None:
        self.group = group
        self.informers: dict[str, Informer[CustomObject]] = {}
        """By kind: the kinds that the API serves, or served once."""
        self.discovered = False
        """Whether discovery has shown which kinds are served. A kind that is not served has no objects."""
        self.error: KubeError | None = None
        """The reason why the last look failed."""
        self._client = client
        self._on_change = on_change
        self._every = every
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start in the background; does not fail without the API."""
        self._task = asyncio.create_task(self._discover(), name=f"policies-{self.group}")

    async def close(self) -> None:
        """Stop the background task and all informers."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await asyncio.gather(*(informer.close() for informer in self.informers.values()))

    def installed(self) -> bool:
        """Whether the API serves a kind of this group."""
        return any(not isinstance(each.error, KubeNoApi) for each in self.informers.values())

    def unlisted(self) -> Iterator[tuple[str, KubeError | None]]:
        """Yield the kinds whose objects are unknown, with the reason if there is one; "" for all kinds of the group.
        If the API fails later, the last known objects remain."""
        if not self.discovered:
            yield "", self.error
        for kind, informer in self.informers.items():
            if not informer.synced.is_set() and not isinstance(informer.error, KubeNoApi):
                yield kind, informer.error

    async def _discover(self) -> None:
        """Look for the kinds of the group until all are served. A kind that disappears later needs no look: its
        informer finds it again."""
        resources = POLICY_RESOURCES[self.group]
        while len(self.informers) < len(resources):
            wait = self._every * random.uniform(1.0, 2.0)
            try:
                served = await self._client.served(resources[NODE_QOS])
            except KubeNotFound:
                served = frozenset()
            except KubeForbidden:  # no discovery for this account: the lists show what is there
                served = frozenset(each.plural for each in resources.values())
            except KubeError as error:
                if self.error is None and not self.discovered:
                    log.warning("cannot discover the policies of %s: %s", self.group, error)
                self.error = error
                limit = RETRY_S if isinstance(error, KubeUnreachable) else self._every
                await asyncio.sleep(random.uniform(0.0, min(limit, self._every)))
                continue
            self.error = None
            for kind, resource in resources.items():
                if resource.plural in served and kind not in self.informers:
                    informer = Informer(self._client, resource, on_change=lambda *_: self._on_change())
                    self.informers[kind] = informer
                    await informer.start()
            self.discovered = True
            self._on_change()
            if len(self.informers) < len(resources):
                await asyncio.sleep(wait)


class ClusterPolicies:
    """The policies of the cluster in both API groups, watched by informers. A kind that is not installed has no
    objects; `discover_every` is the interval in seconds between looks for it (see `PolicyGroup`)."""

    def __init__(
        self,
        client: KubeClient,
        *,
        metrics: KnownMetrics,
        monotonic: Callable[[], float] = time.monotonic,
        discover_every: float = DISCOVER_EVERY_S,
    ) -> None:
        self._metrics = metrics
        self._monotonic = monotonic
        self._started = monotonic()
        self._changed = True
        self._known: object = None
        self._in_force = ActivePolicies()
        self._groups = [
            PolicyGroup(client, group, on_change=self._mark, every=discover_every) for group in schema.GROUPS
        ]

    async def start(self) -> None:
        """Start watching in the background."""
        self._started = self._monotonic()
        for group in self._groups:
            await group.start()

    async def close(self) -> None:
        """Stop watching all kinds of policies."""
        await asyncio.gather(*(group.close() for group in self._groups))

    def installed(self) -> tuple[str, ...]:
        """The API groups whose definitions are installed."""
        return tuple(group.group for group in self._groups if group.installed())

    def _mark(self) -> None:
        self._changed = True

    async def refresh(self) -> ActivePolicies:
        """Read the objects again if one was added, removed or changed, once all kinds have been listed."""
        unlisted = [(group.group, *each) for group in self._groups for each in group.unlisted()]
        if unlisted:
            waited = self._monotonic() - self._started
            problems = (_unlisted(group, kind, error, waited) for group, kind, error in unlisted)
            self._put(replace(self._in_force, problems=tuple(each for each in problems if each is not None)))
            self._changed = True
        elif self._changed or self._unread() != self._known:
            self._changed, self._known = False, self._unread()
            self._take()
        return self._in_force

    def _followed(self) -> Iterator[tuple[str, str, Informer[CustomObject]]]:
        """API group, kind and informer of each kind that is watched, in a fixed order."""
        for group in self._groups:
            for kind in sorted(group.informers):
                yield group.group, kind, group.informers[kind]

    def _unread(self) -> object:
        return {(group, kind): dict(informer.undecodable) for group, kind, informer in self._followed()}

    def _take(self) -> None:
        documents, complaints = list[PolicyDocument](), ProblemCollector(PolicyLocation(API_ORIGIN))
        there: set[Key] = set()
        for group, kind, informer in self._followed():
            origin = _origin(group)
            there |= {(kind, name) for name in (*informer.objects, *informer.undecodable)}
            for name in sorted(informer.objects):
                documents.append(as_document(kind, informer.objects[name], group=group, origin=origin))
            for name, why in informer.undecodable.items():
                complaints.place = PolicyLocation(origin, object=f"{kind}/{name}")
                complaints.problem(f"cannot be read: {why}")
        reading = read_documents(documents, metrics=self._metrics, complaints=complaints)
        self._put(next_active_policies(self._in_force, reading, there=there))

    def _put(self, new: ActivePolicies) -> None:
        old, self._in_force = self._in_force, new
        _tell(old, new, origin=f"the {API_ORIGIN}")


def _origin(group: str) -> str:
    return API_ORIGIN if group == schema.GROUP else f"{API_ORIGIN} ({group})"


def _unlisted(group: str, kind: str, error: KubeError | None, waited: float) -> PolicyProblem | None:
    """The problem of a kind that has not been listed `waited` seconds after the start, or of a group ("") whose kinds
    are unknown; None if it is too early to report one."""
    place = PolicyLocation(_origin(group), object=kind)
    if error is not None:
        return PolicyProblem(place, f"cannot be listed: {error}", error.hint)
    if waited < LIST_PATIENCE_S:
        return None
    return PolicyProblem(place, f"has not been listed within {LIST_PATIENCE_S:.0f} s: the API does not respond")
