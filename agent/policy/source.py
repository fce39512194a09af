"""Where policies come from while the agent runs: a directory, or the Kubernetes API.

Both obey one rule. A set with a problem in it does not come into force, and the last good one stays; but what is no
longer there at all goes even then. So a slip in one policy cannot keep another one alive that its owner has deleted,
and a directory that cannot be read, or an API that is away, is not the same as "no policies": that would restore
everything on the node.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from agent.policy import schema
from agent.policy.documents import LARGEST_FILE, Document
from agent.policy.objects import as_document
from agent.policy.policy_set import Key, KnownMetrics, PolicySet, Reading, read_documents, read_texts
from agent.policy.problems import Complaints, Notice, Place, Problem
from agent.policy.schema import AVOIDANCE_ACTION, NODE_QOS, POD_QOS
from watcher.core.kubernetes.errors import KubeNoApi
from watcher.core.kubernetes.objects import CustomObject
from watcher.core.kubernetes.wire import Resource
from watcher.platform.kube.client import KubeClient
from watcher.platform.kube.informer import Informer

log = logging.getLogger(__name__)

SUFFIXES = (".yaml", ".yml", ".json")
API_ORIGIN = "Kubernetes API"
PLURALS = {NODE_QOS: "nodeqoss", AVOIDANCE_ACTION: "avoidanceactions", POD_QOS: "podqoss"}


@dataclass(frozen=True, slots=True)
class InForce:
    """What the agent goes by. `policies` is None until there has been a good set: then nothing is known, and nothing is
    to be done, nor undone. `problems` keep the newest set from coming into force; they are for /explain and /metrics.
    """

    policies: PolicySet | None = None
    problems: tuple[Problem, ...] = ()
    notices: tuple[Notice, ...] = ()


class PolicySource(Protocol):
    """Where policies come from."""

    async def start(self) -> None:
        """Begin; does not fail because there is nothing to be had yet."""

    async def refresh(self) -> InForce:
        """What is in force now: asked once a cycle, and cheap where nothing changed. Raises nothing."""

    async def close(self) -> None:
        """End."""


def after(old: InForce, reading: Reading, *, there: Collection[Key]) -> InForce:
    """What is in force after a reading, `there` being the objects that still are. Pure."""
    if reading.usable:
        return InForce(reading.policies, (), reading.notices)
    kept = None
    if old.policies is not None:
        gone = {
            key
            for key, each in old.policies.objects.items()
            if key not in there and each.place.origin not in reading.unread
        }
        kept = old.policies.without(gone)
    return replace(old, policies=kept, problems=reading.problems, notices=reading.notices)


def _tell(old: InForce, new: InForce, *, origin: str) -> None:
    """Log changes, not states."""
    if new.problems and new.problems != old.problems:
        told = "\n".join(f"  {each}" for each in new.problems)
        kept = "the policies before them stay in force" if new.policies is not None else "no policies are in force"
        log.warning("policies of %s are refused, %s; problems: %d\n%s", origin, kept, len(new.problems), told)
    elif not new.problems and (old.problems or old.policies is None):
        count = len(new.policies.objects) if new.policies is not None else 0
        log.info("policies of %s are in force: %d", origin, count)
    for notice in new.notices:
        if notice not in old.notices:
            log.info("%s", notice)


# --- a directory -----------------------------------------------------------------------------------------------------

Signature = tuple[tuple[str, int, int, int], ...]


class DirectoryPolicies:
    """The policies in the files of a directory (*.yaml, *.yml, *.json; not those that begin with a dot, nor in
    directories below it). A ConfigMap that is mounted there is followed."""

    def __init__(self, directory: Path, *, metrics: KnownMetrics) -> None:
        self._directory = directory
        self._metrics = metrics
        self._signature: Signature | None = None
        self._in_force = InForce()

    async def start(self) -> None:
        """Nothing is to be begun."""

    async def close(self) -> None:
        """Nothing is to be ended."""

    async def refresh(self) -> InForce:
        """Reads the files again if one of them came, went or changed."""
        return await asyncio.to_thread(self._refresh)

    def _refresh(self) -> InForce:
        try:
            signature = _signature(self._directory)
        except OSError as error:
            self._signature = None
            self._take(_unreadable(self._directory, error, self._in_force), there=())
            return self._in_force
        if signature != self._signature:
            reading = _read(self._directory, [name for name, *_ in signature], metrics=self._metrics)
            # A file that went while we read: look again in the next cycle.
            self._signature = None if reading.unread else signature
            self._take(reading, there=reading.policies.objects.keys())
        return self._in_force

    def _take(self, reading: Reading, *, there: Collection[Key]) -> None:
        old, self._in_force = self._in_force, after(self._in_force, reading, there=there)
        _tell(old, self._in_force, origin=str(self._directory))


def check_policies(path: Path, *, metrics: KnownMetrics) -> Reading:
    """What `load-watcher agent --check PATH` says: all that is wrong with the policies in a directory, or in one file.
    Raises nothing."""
    if path.is_file():
        return _read(path.parent, [path.name], metrics=metrics)
    try:
        names = [name for name, *_ in _signature(path)]
    except OSError as error:
        return _unreadable(path, error, InForce())
    reading = _read(path, names, metrics=metrics)
    if not names:
        notice = Notice(Place(str(path)), f"there is no file *{', *'.join(SUFFIXES)} here")
        return replace(reading, notices=(*reading.notices, notice))
    return reading


def _signature(directory: Path) -> Signature:
    """What tells whether a file came, went or changed."""
    found = []
    for path in sorted(directory.iterdir()):
        if path.suffix in SUFFIXES and not path.name.startswith("."):
            seen = path.stat()
            found.append((path.name, seen.st_mtime_ns, seen.st_size, seen.st_ino))
    return tuple(found)


def _read(directory: Path, names: Collection[str], *, metrics: KnownMetrics) -> Reading:
    texts, unread = dict[str, str](), dict[str, str]()
    for name in names:
        try:
            with (directory / name).open("rb") as file:
                texts[name] = file.read(LARGEST_FILE + 1).decode("utf-8-sig")
        except OSError as error:
            unread[name] = error.strerror or type(error).__name__
        except UnicodeDecodeError:
            unread[name] = "it is not UTF-8"
    return read_texts(texts, metrics=metrics, unread=unread)


def _unreadable(directory: Path, error: OSError, old: InForce) -> Reading:
    cure = "The agent needs to list this directory and to read its files."
    problem = Problem(Place(str(directory)), f"cannot be read: {error.strerror or type(error).__name__}", cure)
    objects = {} if old.policies is None else old.policies.objects
    return Reading(PolicySet(objects), (problem,), (), frozenset(each.place.origin for each in objects.values()))


# --- the Kubernetes API ----------------------------------------------------------------------------------------------


class ClusterPolicies:
    """The policies of the cluster, as copies that keep themselves true have them. A kind of which the cluster has no
    CustomResourceDefinition has no objects."""

    def __init__(self, client: KubeClient, *, metrics: KnownMetrics) -> None:
        self._metrics = metrics
        self._changed = True
        self._known: Mapping[str, object] = {}
        self._in_force = InForce()
        self._informers = {
            kind: Informer(
                client,
                Resource(schema.GROUP, schema.VERSION, plural, CustomObject),
                on_change=lambda *_: self._mark(),
            )
            for kind, plural in PLURALS.items()
        }

    async def start(self) -> None:
        """Begin to watch, in the background."""
        for informer in self._informers.values():
            await informer.start()

    async def close(self) -> None:
        """Stop watching."""
        await asyncio.gather(*(informer.close() for informer in self._informers.values()))

    def _mark(self) -> None:
        self._changed = True

    async def refresh(self) -> InForce:
        """Reads the objects again if one of them came, went or changed, once all kinds have been listed."""
        waiting = {kind: _waiting(informer) for kind, informer in self._informers.items()}
        why = {kind: reason for kind, reason in waiting.items() if reason}
        if why:
            problems = tuple(Problem(Place(API_ORIGIN, object=kind), reason) for kind, reason in why.items())
            self._put(replace(self._in_force, problems=problems))
            self._changed = True
        elif self._changed or self._unread() != self._known:
            self._changed, self._known = False, self._unread()
            self._take()
        return self._in_force

    def _unread(self) -> Mapping[str, object]:
        return {kind: dict(informer.unread) for kind, informer in self._informers.items()}

    def _take(self) -> None:
        documents, complaints = list[Document](), Complaints(Place(API_ORIGIN))
        there: set[Key] = set()
        for kind, informer in self._informers.items():
            there |= {(kind, name) for name in (*informer.objects, *informer.unread)}
            documents += [as_document(kind, informer.objects[name], origin=API_ORIGIN) for name in informer.objects]
            for name, why in informer.unread.items():
                complaints.place = Place(API_ORIGIN, object=f"{kind}/{name}")
                complaints.problem(f"cannot be read: {why}")
        reading = read_documents(documents, metrics=self._metrics, complaints=complaints)
        self._put(after(self._in_force, reading, there=there))

    def _put(self, new: InForce) -> None:
        old, self._in_force = self._in_force, new
        _tell(old, new, origin=f"the {API_ORIGIN}")


def _waiting(informer: Informer[CustomObject]) -> str:
    """Why nothing is known of a kind yet, "" where it is. (An API that goes away later leaves what was known.)"""
    if informer.synced.is_set() or isinstance(informer.error, KubeNoApi):
        return ""
    return "is not listed yet" if informer.error is None else f"cannot be listed: {informer.error}"
