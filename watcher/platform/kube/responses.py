"""Decode responses of the Kubernetes API: a page of a list, a line of a watch, one object.

An object that does not fit its type is reported separately and does not affect the other objects: a custom resource may
contain values that its definition never validated. A response that does not come from a Kubernetes API raises
KubeMalformed, with the beginning of the response.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any, Generic

import msgspec

from watcher.core.kubernetes.errors import KubeMalformed
from watcher.core.kubernetes.wire import ItemT, ObjectList, Resource, Versioned, WatchLine, key_of
from watcher.core.messages import printable
from watcher.decoding.json_text import JsonDecoder, decode_json
from watcher.platform.kube.refusals import ApiStatus, error_of, read_status

CLOCK_TOLERANCE_S = 5.0
"""Seconds; see `seconds_ahead`."""
_LINE = JsonDecoder(WatchLine)
_RAW_LIST = JsonDecoder(ObjectList[msgspec.Raw])  # type: ignore[type-var]  # Raw has no metadata
_VERSIONED = JsonDecoder(Versioned)


@dataclass(frozen=True, slots=True)
class Listing(Generic[ItemT]):
    """All objects of a resource at resource version `version`; a watch can continue from there. `unread` maps the names
    of objects that do not fit their type to the reason."""

    items: tuple[ItemT, ...]
    version: str
    unread: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WatchEvent(Generic[ItemT]):
    """One watch event: `type` is ADDED, MODIFIED or DELETED, `key` is the name of the object. `item` is None if the
    object does not fit its type; `problem` is the reason. Two types concern no object: OPENED comes first and means
    that the server accepted the watch, BOOKMARK carries the version that the watch has reached."""

    type: str
    version: str
    key: str = ""
    item: ItemT | None = None
    problem: str = ""


def read_page(
    body: bytes, decoder: JsonDecoder[ObjectList[ItemT]], *, resource: Resource[ItemT]
) -> tuple[ObjectList[ItemT], Mapping[str, str]]:
    """Decode a page of a list. Returns the page and the reasons why objects do not fit their type, by object name."""
    try:
        page = decoder.decode(body)
    except msgspec.DecodeError:
        return read_large_page(body, resource=resource)
    return _of_a_list(page, resource=resource), {}


def read_large_page(body: bytes, *, resource: Resource[ItemT]) -> tuple[ObjectList[ItemT], Mapping[str, str]]:
    """Decode a page one object at a time. Takes 50% longer than `read_page`, but lets other threads run in between."""
    try:
        page, unread = _read_one_by_one(body, resource=resource)
    except msgspec.DecodeError as error:
        raise _not_kubernetes(body, what=f"a list of {resource.full_name}", problem=str(error)) from error
    return _of_a_list(page, resource=resource), unread


def _of_a_list(page: ObjectList[ItemT], *, resource: Resource[Any]) -> ObjectList[ItemT]:
    if not page.kind.endswith("List"):
        raise KubeMalformed(f"the server returned a {printable(page.kind)} instead of a list of {resource.full_name}")
    return page


def _read_one_by_one(body: bytes, *, resource: Resource[ItemT]) -> tuple[ObjectList[ItemT], dict[str, str]]:
    """Decode each object of a page separately, so that an object that does not fit its type does not affect the
    others."""
    page: ObjectList[Any] = _RAW_LIST.decode(body)
    items: list[ItemT] = []
    unread: dict[str, str] = {}
    for raw in page.items or ():
        try:
            items.append(decode_json(raw, type=resource.item))
        except msgspec.DecodeError as error:
            unread[key_of(_VERSIONED.decode(raw))] = printable(str(error))
    return ObjectList(page.kind, page.metadata, items), unread


def read_event(line: bytes, decoder: JsonDecoder[ItemT], *, resource: Resource[Any]) -> WatchEvent[ItemT]:
    """Decode a line of a watch. Raises the KubeError that corresponds to an ERROR event."""
    try:
        read = _LINE.decode(line)
        if read.type == "ERROR":
            status = decode_json(read.object, type=ApiStatus)
            raise error_of(status.code, read_status(bytes(read.object)), verb="watch", resource=resource)
        head = _VERSIONED.decode(read.object)
        version = head.metadata.resource_version
        if read.type == "BOOKMARK":
            return WatchEvent(read.type, version)
        try:
            return WatchEvent(read.type, version, key_of(head), decoder.decode(read.object))
        except msgspec.DecodeError as error:
            return WatchEvent(read.type, version, key_of(head), problem=printable(str(error)))
    except msgspec.DecodeError as error:
        raise _not_kubernetes(line, what=f"an event of {resource.full_name}", problem=str(error)) from error


def read_item(body: bytes, *, resource: Resource[ItemT]) -> ItemT:
    """Decode a single object. Raises KubeMalformed."""
    try:
        return decode_json(body, type=resource.item)
    except msgspec.DecodeError as error:
        raise _not_kubernetes(body, what=f"an object of {resource.full_name}", problem=str(error)) from error


def seconds_ahead(date: str | None, *, now: float) -> float:
    """Seconds by which a clock that shows `now` (unix seconds) is ahead of the server that sent this Date header; 0 for
    a difference that the header's resolution and the way to here may explain, and without a valid header."""
    try:
        ahead = now - parsedate_to_datetime(date or "").timestamp()
    except (ValueError, OverflowError):
        return 0.0
    return ahead if abs(ahead) > CLOCK_TOLERANCE_S else 0.0


def _not_kubernetes(body: bytes, *, what: str, problem: str) -> KubeMalformed:
    start = printable(body[:1024].decode(errors="replace"))
    hint = "Check that the server address is that of a Kubernetes API and not of a proxy in front of it."
    if not body.strip():
        return KubeMalformed(f"the server returned an empty response instead of {what}", hint=hint)
    if body.lstrip()[:1] == b"<":
        return KubeMalformed(f"the server returned a web page instead of {what}: {start}", hint=hint)
    return KubeMalformed(f"the response is not {what} ({printable(problem)}): {start}", hint=hint)
