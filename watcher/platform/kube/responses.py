"""What an answer of the Kubernetes API says: a page of a list, a line of a watch, one object.

An object that does not fit its type costs itself and no other: a custom resource may hold what its definition never
checked. What is no answer of the API at all is KubeMalformed, with its first words.

Pure: bytes in, objects out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic

import msgspec

from watcher.core.kubernetes.errors import KubeMalformed, shown
from watcher.core.kubernetes.wire import ItemT, ObjectList, Resource, Versioned, WatchLine, key_of
from watcher.platform.kube.refusals import Status, error_of, read_status

_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_LINE = msgspec.json.Decoder(WatchLine)
_RAW_LIST = msgspec.json.Decoder(ObjectList[msgspec.Raw])  # type: ignore[type-var]  # no object yet
_VERSIONED = msgspec.json.Decoder(Versioned)


@dataclass(frozen=True, slots=True)
class Listing(Generic[ItemT]):
    """All objects of a resource, true at `version`, from where a watch can go on. `unread` says of those that do not
    fit their type what is wrong with them, by name."""

    items: tuple[ItemT, ...]
    version: str
    unread: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Event(Generic[ItemT]):
    """What happened: `type` is ADDED, MODIFIED or DELETED, and `key` the name of the object. `item` is None where it
    does not fit its type, and `problem` says why. OPENED comes first and says that the server agreed to watch,
    BOOKMARK says how far the watch has come: both are about no object."""

    type: str
    version: str
    key: str = ""
    item: ItemT | None = None
    problem: str = ""


def read_page(
    body: bytes, decoder: msgspec.json.Decoder[ObjectList[ItemT]], *, resource: Resource[ItemT]
) -> tuple[ObjectList[ItemT], Mapping[str, str]]:
    """A page of a list, and what is wrong with those of its objects that do not fit their type."""
    try:
        page = decoder.decode(body)
    except _UNREADABLE:
        return read_large_page(body, resource=resource)
    return _of_a_list(page, resource=resource), {}


def read_large_page(body: bytes, *, resource: Resource[ItemT]) -> tuple[ObjectList[ItemT], Mapping[str, str]]:
    """The same one object at a time: it takes half as long again, and lets other threads run in between."""
    try:
        page, unread = _read_one_by_one(body, resource=resource)
    except _UNREADABLE as error:
        raise _not_kubernetes(body, what=f"a list of {resource.full_name}", problem=str(error)) from error
    return _of_a_list(page, resource=resource), unread


def _of_a_list(page: ObjectList[ItemT], *, resource: Resource[Any]) -> ObjectList[ItemT]:
    if not page.kind.endswith("List"):
        raise KubeMalformed(f"it answered with a {shown(page.kind)}, not with a list of {resource.full_name}")
    return page


def _read_one_by_one(body: bytes, *, resource: Resource[ItemT]) -> tuple[ObjectList[ItemT], dict[str, str]]:
    """A page, in which an object that does not fit its type does not cost the others."""
    page: ObjectList[Any] = _RAW_LIST.decode(body)
    items: list[ItemT] = []
    unread: dict[str, str] = {}
    for raw in page.items or ():
        try:
            items.append(msgspec.json.decode(raw, type=resource.item))
        except msgspec.ValidationError as error:
            unread[key_of(_VERSIONED.decode(raw))] = shown(str(error))
    return ObjectList(page.kind, page.metadata, items), unread


def read_event(line: bytes, decoder: msgspec.json.Decoder[ItemT], *, resource: Resource[Any]) -> Event[ItemT]:
    """A line of a watch. Raises the KubeError that an ERROR event means."""
    try:
        read = _LINE.decode(line)
        if read.type == "ERROR":
            status = msgspec.json.decode(read.object, type=Status)
            raise error_of(status.code, read_status(bytes(read.object)), verb="watch", resource=resource)
        head = _VERSIONED.decode(read.object)
        version = head.metadata.resource_version
        if read.type == "BOOKMARK":
            return Event(read.type, version)
        try:
            return Event(read.type, version, key_of(head), decoder.decode(read.object))
        except msgspec.ValidationError as error:
            return Event(read.type, version, key_of(head), problem=shown(str(error)))
    except _UNREADABLE as error:
        raise _not_kubernetes(line, what=f"an event of {resource.full_name}", problem=str(error)) from error


def read_item(body: bytes, *, resource: Resource[ItemT]) -> ItemT:
    """An object by itself."""
    try:
        return msgspec.json.decode(body, type=resource.item)
    except _UNREADABLE as error:
        raise _not_kubernetes(body, what=f"one of {resource.full_name}", problem=str(error)) from error


def _not_kubernetes(body: bytes, *, what: str, problem: str) -> KubeMalformed:
    start = shown(body[:1024].decode(errors="replace"))
    hint = "Is the server's address that of a Kubernetes API, or of something before it?"
    if not body.strip():
        return KubeMalformed(f"it answered with nothing, not with {what}", hint=hint)
    if body.lstrip()[:1] == b"<":
        return KubeMalformed(f"it answered with a web page, not with {what}: {start}", hint=hint)
    return KubeMalformed(f"its answer is not {what} ({shown(problem)}): {start}", hint=hint)
